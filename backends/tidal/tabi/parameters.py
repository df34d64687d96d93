"""What an operator may set in a `tabi` model's config.pbtxt."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tidal.errors import InvalidArgument
from tidal.tabi.manifest import Target


class TabiParameters(BaseModel):
    """Parameters of the `tabi` backend beside those that all backends share."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    target_accuracy: float | None = Field(
        None,
        ge=-1,  # a correlation
        le=1,
        description="least score, instead of the target that the cascade was built for; the fastest candidate that "
        "reaches it serves",
    )
    target_accuracy_loss: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="how far the score may lie below that of the most accurate level alone, instead of the target that "
        "the cascade was built for; the fastest candidate within it serves",
    )
    target_latency_ms: float | None = Field(
        None,
        gt=0,
        le=3_600_000,
        description="most mean latency of a query in milliseconds, instead of the target that the cascade was built "
        "for; the best candidate within it serves",
    )
    escalation_rate: float | None = Field(
        None,
        ge=0,
        le=1,
        description="most share of the queries that leave the first level, instead of the target that the cascade was "
        "built for; the best candidate within it serves",
    )
    levels: Literal["embedded", "models"] = Field(
        "embedded",
        description="where levels run: in this model's process, which saves the way to others, or as models of the "
        "server, which clients and other cascades may share; a level that is partitioned, or a task, always is one",
    )
    truncate: bool = Field(False, description="cut a text that no level reads as a whole instead of refusing it")
    max_in_flight: int = Field(
        24,
        ge=1,
        le=4096,
        description="calls to levels at the same time, shared evenly among them; further queries wait here",
    )
    level_timeout_ms: float = Field(
        10_000,
        gt=0,
        le=3_600_000,
        description="milliseconds after which a level that has not answered has failed",
    )
    on_level_failure: Literal["answer", "error"] = Field(
        "answer",
        description="what a query gets when a level that it was to go on to fails: the answer of the levels below, "
        "marked as degraded, or the error",
    )
    on_first_level_failure: Literal["error", "next"] = Field(
        "error",
        description="what a query gets when its first level fails: the error, or the answer of the next level, marked "
        "as degraded",
    )
    overload_ms: float | None = Field(
        None,
        gt=0,
        le=3_600_000,
        description="queueing time before and in the levels, in milliseconds, above which a faster candidate serves; "
        "default: none ever does",
    )
    overload_accuracy: float | None = Field(
        None, ge=-1, le=1, description="least score of a candidate that serves under overload; with overload_ms only"
    )

    def target(self) -> Target | None:
        """What the candidate that serves has to meet; None: what the cascade was built for.

        Raises:
            InvalidArgument: several are named.
        """
        wanted = {
            "target_accuracy": ("accuracy", self.target_accuracy),
            "target_accuracy_loss": ("accuracy_loss", self.target_accuracy_loss),
            "target_latency_ms": ("latency_ms", self.target_latency_ms),
            "escalation_rate": ("escalation_rate", self.escalation_rate),
        }
        named = {name: field for name, field in wanted.items() if field[1] is not None}
        if len(named) > 1:
            raise InvalidArgument(f"config.pbtxt has the parameters {' and '.join(named)}; accepted is one of them")
        return Target(**dict(named.values())) if named else None
