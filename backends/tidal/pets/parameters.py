"""Parameters of a `pets` model in config.pbtxt."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from tidal.encoder_tasks.long_texts import LongTextParameters
from tidal.errors import InvalidArgument
from tidal.pets.policies import Batching, BySpread, Fixed, alpha_only, beta_only, coordinated, joint, soonest
from tidal.pets.profile import PetsProfile

_MIB = 1 << 20
_PLAIN: dict[str, Batching] = {
    "joint": joint,
    "soonest": soonest,
    "coordinated": coordinated,
    "alpha_only": alpha_only,
    "beta_only": beta_only,
}


class PetsParameters(LongTextParameters):
    """Parameters of the `pets` backend, in addition to those that all backends share."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    batching: Literal["joint", "soonest", "coordinated", "alpha_only", "beta_only", "by_spread", "fixed"] = Field(
        "joint", description="how waiting queries are batched"
    )
    fixed_size: int | None = Field(
        None, ge=1, le=4096, description="number of queries per batch; only with batching fixed"
    )
    spread_tokens: float | None = Field(
        None,
        ge=0,
        le=1e6,
        description="standard deviation of lengths in tokens from which only the shared cost counts; only with "
        "batching "
        "by_spread; default: the build's threshold",
    )
    max_batch: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="largest number of queries per batch; default: the largest that the build measured",
    )
    batch_memory_mb: float | None = Field(
        None, gt=0, le=1e7, description="memory in MiB that a batch's activations may take; default: no limit"
    )
    task_memory_mb: float = Field(2048.0, gt=0, le=1e7, description="memory in MiB that loaded tasks may take")
    merged_copies: int = Field(
        0,
        ge=0,
        le=1000,
        description="largest number of hot tasks that run from copies of the base with the task merged; each copy "
        "takes "
        "the memory of the base",
    )
    by_utility: bool = Field(
        False,
        description="if waiting queries cannot all be in time, run those with the highest utility per second instead "
        "of "
        "the cheapest",
    )

    @property
    def task_bytes(self) -> int:
        """Memory in bytes that loaded tasks may take."""
        return int(self.task_memory_mb * _MIB)

    @property
    def batch_bytes(self) -> int | None:
        """Memory in bytes that a batch's activations may take; None: no limit."""
        return None if self.batch_memory_mb is None else int(self.batch_memory_mb * _MIB)

    def strategy(self, profile: PetsProfile) -> Batching:
        """The function that puts waiting queries into batches.

        Args:
            profile: Profile of the base, which may have a threshold for `by_spread`.

        Raises:
            InvalidArgument: The parameters are inconsistent, or a threshold is given neither here nor by the profile.
        """
        if (self.fixed_size is not None) != (self.batching == "fixed"):
            raise InvalidArgument(
                f"config.pbtxt has batching {self.batching} "
                + (
                    "without fixed_size"
                    if self.batching == "fixed"
                    else "and fixed_size, which is only accepted with batching fixed"
                )
            )
        if self.fixed_size is not None:
            return Fixed(self.fixed_size)
        if self.batching == "by_spread":
            threshold = profile.spread_tokens if self.spread_tokens is None else self.spread_tokens
            if threshold is None:
                raise InvalidArgument(
                    "config.pbtxt has batching by_spread without spread_tokens, and the build measured no threshold; "
                    "set spread_tokens"
                )
            return BySpread(threshold)
        if self.spread_tokens is not None:
            raise InvalidArgument(
                f"config.pbtxt has batching {self.batching} and spread_tokens, which is only accepted with "
                "batching by_spread"
            )
        return _PLAIN[self.batching]
