"""Parameters of a `tabi` model's config.pbtxt."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tidal.errors import InvalidArgument
from tidal.tabi.manifest import Target


class TabiParameters(BaseModel):
    """Parameters of the `tabi` backend, in addition to those of all backends."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    target_accuracy: float | None = Field(
        None,
        ge=-1,  # a correlation
        le=1,
        description="minimum score, instead of the target that the cascade was built for; the fastest candidate that "
        "reaches it serves",
    )
    target_accuracy_loss: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="maximum difference between the score of the most accurate level alone and that of the candidate "
        "on new queries, with 95 % confidence, instead of the target that the cascade was built for; the fastest "
        "candidate within it serves",
    )
    target_latency_ms: float | None = Field(
        None,
        gt=0,
        le=3_600_000,
        description="maximum mean latency of a query in milliseconds, instead of the target that the cascade was built "
        "for; the most accurate candidate within it serves",
    )
    escalation_rate: float | None = Field(
        None,
        ge=0,
        le=1,
        description="maximum share of the queries that leave the first level, instead of the target that the cascade "
        "was built for; the most accurate candidate within it serves",
    )
    target_p75_ms: float | None = Field(
        None,
        gt=0,
        le=3_600_000,
        description="maximum 75th percentile of a query's latency in milliseconds, beside one of the parameters for a "
        "target",
    )
    target_p99_ms: float | None = Field(
        None,
        gt=0,
        le=3_600_000,
        description="maximum 99th percentile of a query's latency in milliseconds, beside one of the parameters for a "
        "target",
    )
    levels: Literal["embedded", "models"] = Field(
        "embedded",
        description="where levels run: in this model's process, without calls between processes, or as models of the "
        "server, which clients and other cascades may share; a level that is partitioned, or a task, always is a model "
        "of the server",
    )
    truncate: bool = Field(False, description="cut a text that is too long for every level instead of rejecting it")
    max_in_flight: int = Field(
        24,
        ge=1,
        le=4096,
        description="maximum number of concurrent calls to levels that are models of the server, split evenly among "
        "them; further queries wait",
    )
    level_timeout_ms: float = Field(
        10_000,
        gt=0,
        le=3_600_000,
        description="milliseconds after which a call to a level fails",
    )
    on_level_failure: Literal["answer", "error"] = Field(
        "answer",
        description="reply to a query if a level that it was re-routed to fails: the answer of the levels below, "
        "marked as degraded, or the error",
    )
    on_first_level_failure: Literal["error", "next"] = Field(
        "error",
        description="reply to a query if its first level fails: the error, or the answer of the next level, marked as "
        "degraded",
    )
    overload_ms: float | None = Field(
        None,
        gt=0,
        le=3_600_000,
        description="queueing time of queries in milliseconds, above which a faster candidate serves; default: the "
        "candidate never changes",
    )
    overload_accuracy: float | None = Field(
        None,
        ge=-1,
        le=1,
        description="minimum score of a candidate that serves under overload; requires overload_ms",
    )

    def target(self) -> Target | None:
        """Return the target that the candidate which serves has to meet; None for the one the cascade was built for.

        Raises:
            InvalidArgument: Several targets are set, or a limit of a percentile without any.
        """
        wanted = {
            "target_accuracy": ("accuracy", self.target_accuracy),
            "target_accuracy_loss": ("accuracy_loss", self.target_accuracy_loss),
            "target_latency_ms": ("latency_ms", self.target_latency_ms),
            "escalation_rate": ("escalation_rate", self.escalation_rate),
        }
        named = {name: field for name, field in wanted.items() if field[1] is not None}
        if len(named) > 1:
            raise InvalidArgument(f"config.pbtxt has the parameters {' and '.join(named)}; set only one of them")
        limits = {"p75_ms": self.target_p75_ms, "p99_ms": self.target_p99_ms}
        if not named:
            for name in (name for name, limit in limits.items() if limit is not None):
                raise InvalidArgument(
                    f"config.pbtxt has the parameter target_{name} without a target; set one of {', '.join(wanted)} too"
                )
            return None
        return Target(**dict(named.values()), **limits)
