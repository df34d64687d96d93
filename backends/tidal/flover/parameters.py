"""What an operator may set in a `flover` model's config.pbtxt."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class FloverParameters(BaseModel):
    """Parameters of the `flover` backend beside those that all backends share."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    default_max_tokens: int = Field(
        128, ge=1, le=1_000_000, description="tokens to generate at most where the request names no max_tokens"
    )
    prefill_share: float = Field(
        1.0,
        gt=0,
        le=1000,
        description="time that prompts are read beside a step at most, as a multiple of the step's time",
    )
    shuffle: bool = Field(True, description="bring the slots of running generations together before each step")
