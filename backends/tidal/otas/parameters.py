"""Parameters of an `otas` model in config.pbtxt."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tidal.errors import InvalidArgument
from tidal.otas.policies import CostProfile, FixedPolicy, OtasPolicy, PaperPolicy, ParetoPolicy

_MIB = 1 << 20


class OtasParameters(BaseModel):
    """Parameters of the `otas` backend, in addition to those of every backend."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: Literal["pareto", "paper", "fixed"] = Field(
        "pareto",
        description="policy for batches and their γ: Tidal's plans, the published one, or one γ for all batches",
    )
    gamma: int | None = Field(
        None, ge=-4096, le=4096, description="γ of all batches, one of the model's; only with policy fixed"
    )
    default_latency_ms: float = Field(
        10_000.0, gt=0, le=3_600_000, description="deadline of queries without latency_ms, in milliseconds"
    )
    batch_memory_mb: float | None = Field(
        None, gt=0, le=1e7, description="memory limit of a running batch, in MiB; default: no limit"
    )
    task_memory_mb: float = Field(
        2048.0, gt=0, le=1e7, description="memory limit of the prompts and heads of tasks in memory, in MiB"
    )
    # Pillow itself refuses images of more than 179 million.
    max_megapixels: float = Field(
        50.0, gt=0, le=170, description="maximum size of an image before it is scaled, in megapixels"
    )
    max_image_mb: float = Field(64.0, gt=0, le=1e4, description="maximum size of an encoded image, in MiB")

    @property
    def task_bytes(self) -> int:
        """Memory limit of the tasks in memory, in bytes."""
        return int(self.task_memory_mb * _MIB)

    @property
    def max_pixels(self) -> int:
        """Maximum number of pixels of an image."""
        return int(self.max_megapixels * 1e6)

    @property
    def max_image_bytes(self) -> int:
        """Maximum size of an encoded image, in bytes."""
        return int(self.max_image_mb * _MIB)

    def make_policy(self, profile: CostProfile) -> OtasPolicy:
        """Make the policy of one service.

        Args:
            profile: Costs and accuracies by γ.

        Raises:
            InvalidArgument: Parameters contradict each other, the model does not have the γ, or the memory limit allows
                no batch.
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
