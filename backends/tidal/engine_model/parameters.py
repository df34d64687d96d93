"""What an operator may set in an `engine` model's config.pbtxt."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class EngineParameters(BaseModel):
    """Parameters of the `engine` backend."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pin: bool = Field(
        True,
        description="run an instance of one thread on a processor core, or one on a GPU on a GPU, that no other "
        "instance has",
    )
