"""What an operator may set in an `otas` model's config.pbtxt."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tidal.errors import InvalidArgument
from tidal.otas.policies import CostProfile, FixedPolicy, OtasPolicy, PaperPolicy, ParetoPolicy

_MIB = 1 << 20


class OtasParameters(BaseModel):
    """Parameters of the `otas` backend beside those that all backends share."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: Literal["pareto", "paper", "fixed"] = Field(
        "pareto", description="how batches and their γ are chosen: by our plans, as published, or one γ for all"
    )
    gamma: int | None = Field(
        None, ge=-4096, le=4096, description="the γ of all batches, one of the model's; with policy fixed only"
    )
    default_latency_ms: float = Field(
        10_000.0, gt=0, le=3_600_000, description="deadline in milliseconds of queries that name no latency_ms"
    )
    batch_memory_mb: float | None = Field(
        None, gt=0, le=1e7, description="MiB that a batch may take while it runs; default: no limit"
    )
    task_memory_mb: float = Field(
        2048.0, gt=0, le=1e7, description="MiB that prompts and heads of the tasks in memory may take"
    )
    # Pillow itself refuses images of more than 179 million.
    max_megapixels: float = Field(50.0, gt=0, le=170, description="million pixels of an image before it is scaled")

    max_image_mb: float = Field(64.0, gt=0, le=1e4, description="MiB of an encoded image")

    @property
    def task_bytes(self) -> int:
        """Bytes that the tasks in memory may take."""
        return int(self.task_memory_mb * _MIB)

    @property
    def most_pixels(self) -> int:
        """Pixels of an image at most."""
        return int(self.max_megapixels * 1e6)

    @property
    def most_image_bytes(self) -> int:
        """Bytes of an encoded image at most."""
        return int(self.max_image_mb * _MIB)

    def make_policy(self, profile: CostProfile) -> OtasPolicy:
        """What decides for one service.

        Raises:
            InvalidArgument: parameters that do not go together, a γ that the model does not have, or memory that
                allows no batch.
        """
        memory = None if self.batch_memory_mb is None else int(self.batch_memory_mb * _MIB)
        if (self.gamma is not None) != (self.policy == "fixed"):
            raise InvalidArgument(
                f"config.pbtxt has policy {self.policy} "
                + ("without gamma" if self.policy == "fixed" else "and gamma, which goes with fixed only")
            )
        if self.gamma is not None:
            return FixedPolicy(profile, self.gamma, memory_bytes=memory)
        return (PaperPolicy if self.policy == "paper" else ParetoPolicy)(profile, memory_bytes=memory)
