"""Parameters of `engine` models in config.pbtxt."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class EngineParameters(BaseModel):
    """Parameters of the `engine` backend."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pin: bool = Field(
        True,
        description="give each instance an exclusive processor core if it has one thread, or a GPU if it runs on one",
    )
    deployed: bool = Field(
        True,
        description="false: `tidal serve` runs no instance until an allocation says so; of runtimes that "
        "`tidal build` published with fewer devices than runtimes",
    )
