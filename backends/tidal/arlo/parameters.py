"""What an operator may set in an `arlo` model's config.pbtxt."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ArloParameters(BaseModel):
    """Parameters of the `arlo` backend beside those that all backends share."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    truncate: bool = Field(False, description="cut a longer text to the model's limit instead of refusing it")
    service_weight: float = Field(
        10.0,
        ge=0,
        le=1000,
        description="how many expected service times a query is held back for in the order of the queue; "
        "0 is first come, first served, large values favour short queries",
    )
