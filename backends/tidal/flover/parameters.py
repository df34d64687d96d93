"""Parameters of a `flover` model in its config.pbtxt."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

_MIB = 1 << 20


class FloverParameters(BaseModel):
    """Parameters of the `flover` backend, in addition to those of all backends."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    default_max_tokens: int = Field(
        128, ge=1, le=1_000_000, description="largest number of tokens to generate if the request has no max_tokens"
    )
    part_wait_ms: float = Field(
        100.0,
        ge=0,
        le=10_000,
        description="longest delay of a streamed token in ms, to be sent with later ones",
    )
    prefill_share: float = Field(
        1.0,
        gt=0,
        le=1000,
        description="bound on the time of prefill beside a decode step, as a multiple of the step's duration",
    )
    shuffle: bool = Field(True, description="make the slots of running generations contiguous before each decode step")
    reuse_prefixes: bool = Field(
        True,
        description="start a prompt from the tokens that a slot still holds of an earlier one, "
        "as a copy or in place, instead of prefilling them",
    )
    speculation: bool = Field(
        True,
        description="check several tokens of a text in one step where that is measured to pay: those that followed its "
        "latest tokens before, in the prompt or the text, or those that the version's draft model drafts; it changes "
        "texts by rounding only",
    )
    kv_cache_mb: float | None = Field(
        None,
        gt=0,
        le=1e7,
        description="largest size of keys and values in memory, in MiB; default: that of the version's spec, else the "
        "free memory at load less a reserve, at most that of full slots",
    )
    task_memory_mb: float = Field(2048.0, gt=0, le=1e7, description="largest size of tasks in memory, in MiB")

    @property
    def task_bytes(self) -> int:
        """Largest size of tasks in memory, in bytes."""
        return int(self.task_memory_mb * _MIB)
