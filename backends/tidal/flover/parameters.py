"""What an operator may set in a `flover` model's config.pbtxt."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

_MIB = 1 << 20


class FloverParameters(BaseModel):
    """Parameters of the `flover` backend beside those that all backends share."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    default_max_tokens: int = Field(
        128, ge=1, le=1_000_000, description="tokens to generate at most where the request names no max_tokens"
    )
    part_wait_ms: float = Field(
        100.0, ge=0, le=10_000, description="time that a token of a stream may wait to be sent with the next, in ms"
    )
    prefill_share: float = Field(
        1.0,
        gt=0,
        le=1000,
        description="time that prompts are read beside a step at most, as a multiple of the step's time",
    )
    shuffle: bool = Field(True, description="bring the slots of running generations together before each step")
    task_memory_mb: float = Field(2048.0, gt=0, le=1e7, description="MiB that the values of tasks in memory may take")

    @property
    def task_bytes(self) -> int:
        """Bytes that the tasks in memory may take."""
        return int(self.task_memory_mb * _MIB)
