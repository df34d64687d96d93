"""How the native library computes products: the choices that depend on the processor."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Prefetch = Literal["none", "non-temporal", "T0", "T1"]
# In the order of the native library's numbers, see native/kernels.hpp.
PREFETCHES: tuple[Prefetch, ...] = ("none", "non-temporal", "T0", "T1")
# Number of rows above any batch.
NEVER = 1 << 30
# Level of vector instructions that has products of matrices.
MATRIX_LEVEL = "amx"


class Tiling(BaseModel):
    """Choices of the kernels, measured by the builder (`tidal.flover.native.tuning`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prefetch: Prefetch = Field("T0", description="prefetch of weights that are read for a single tile of rows")
    panel: Literal[32, 48, 64] = Field(48, description="outputs of a weight that are stored together")
    tile_rows: int = Field(8, ge=1, le=12, description="largest number of rows whose sums stay in registers")
    byte_rows: int = Field(
        NEVER,
        ge=1,
        description="int8 and int4: number of rows from which on rows are rounded to 8 bits instead of 16",
    )
    matrix_rows: int = Field(
        1, ge=1, description="bf16: number of rows from which on AMX multiplies, on processors that have it"
    )
    integer_matrix_rows: int = Field(1, ge=1, description="int8 and int4: the same")

    def __str__(self) -> str:
        rows = "16-bit rows" if self.byte_rows >= NEVER else f"8-bit rows from {self.byte_rows} rows on"
        prefetch = "no prefetch" if self.prefetch == "none" else f"prefetch {self.prefetch}"
        return f"{prefetch}, panels of {self.panel}, tiles of {self.tile_rows} rows, {rows}"


class KernelChoice(Tiling):
    """The kernels of a published version."""

    level: str = Field(description="level of vector instructions that was measured")
    gigabytes_per_s: float = Field(gt=0, description="speed at which a product with one row reads a bf16 weight")

    def __str__(self) -> str:
        used = [
            f"{kind} rows from {first} on"
            for kind, first in (("bf16", self.matrix_rows), ("integer", self.integer_matrix_rows))
            if first < NEVER
        ]
        level = f"{self.level} for {' and '.join(used) or 'nothing'}" if self.level == MATRIX_LEVEL else self.level
        return f"{level}, {super().__str__()}, {self.gigabytes_per_s:.1f} GB/s with one row"


DEFAULT_TILING = Tiling()
