"""Configurations of dynamic batching for one model: Triton's default batching, and the custom batcher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidal.batcher.library import LIBRARY
from tidal.engine_model.manifest import EngineManifest

Pick = Callable[[Sequence["Batching"]], "Batching"]


@dataclass(frozen=True, slots=True)
class Batching:
    """One configuration of dynamic batching.

    Attributes:
        max_batch: Maximum number of rows of a batch.
        ragged: Whether requests of different lengths may share a batch (`allow_ragged_batch`).
        delay_us: Maximum queue delay.
        preferred: Preferred batch sizes, which are sent at once; () leaves Triton's default, the maximum.
        final: Whether every size is preferred, so that a batch does not grow after it was formed.
        tokens: Maximum of longest length times rows of a batch, with the custom batcher.
        length_bin: Width of length bins, with the custom batcher.
    """

    max_batch: int
    ragged: bool = True
    delay_us: int = 0
    preferred: tuple[int, ...] = ()
    final: bool = False
    tokens: int | None = None
    length_bin: int | None = None

    @property
    def name(self) -> str:
        """Name in tables."""
        parts = [
            f"batch {self.max_batch}",
            "" if self.ragged else "equal lengths",
            f"delay {self.delay_us / 1e3:g} ms" if self.delay_us else "",
            f"preferred {self.preferred[0]}" if self.preferred else "",
            f"tokens {self.tokens}" if self.tokens else "",
            f"bins of {self.length_bin}" if self.length_bin else "",
            "" if self.final or not (self.tokens or self.length_bin) else "as a hint",
        ]
        return ", ".join(part for part in parts if part)

    def config(self, manifest: EngineManifest, instances: int) -> dict[str, Any]:
        """Return the complete config of a model for Triton's load API."""
        parameters = {"TIDAL_BATCH_TOKENS": self.tokens, "TIDAL_BATCH_LENGTH_BIN": self.length_bin}
        given = {name: {"string_value": str(value)} for name, value in parameters.items() if value is not None}
        if given:
            given["TRITON_BATCH_STRATEGY_PATH"] = {"string_value": str(LIBRARY.file)}
        preferred = range(1, self.max_batch + 1) if self.final else self.preferred
        return {
            "name": manifest.name,
            "backend": "engine",
            "max_batch_size": self.max_batch,
            "input": [
                {"name": each.name, "data_type": "TYPE_INT64", "dims": [-1], "allow_ragged_batch": self.ragged}
                for each in manifest.inputs
            ],
            "output": [{"name": "logits", "data_type": "TYPE_FP32", "dims": [-1]}],
            "instance_group": [{"kind": "KIND_CPU", "count": instances}],
            "dynamic_batching": {
                "max_queue_delay_microseconds": self.delay_us,
                **({"preferred_batch_size": list(preferred)} if preferred else {}),
            },
            "parameters": given,
        }


def search_plain(best: Pick, *, quick: bool) -> Batching:
    """Search without the custom batcher: first ragged batching and batch size, then delay and preferred sizes."""
    if quick:
        first = best([Batching(16, ragged=False), Batching(2), Batching(16)])
        return best([first, replace(first, delay_us=2_000)])
    sizes = (1, 2, 4, 8, 16, 64)
    first = best([Batching(size, ragged) for ragged in (False, True) for size in sizes if ragged or size > 1])
    preferred = [sizes for sizes in ((), (2,), (4,), (8,)) if not sizes or sizes[0] < first.max_batch]
    delays = (1_000, 5_000)
    return best([first, *(replace(first, delay_us=delay, preferred=sizes) for delay in delays for sizes in preferred)])


def search_batcher(best: Pick, *, quick: bool) -> Batching:
    """Search with the custom batcher: first the token budget, then bins, and batches that may grow while they wait."""
    budgets = (256, 1024) if quick else (64, 128, 256, 512, 1024, 2048, 4096)
    first = best([Batching(64, final=True, tokens=tokens) for tokens in budgets])
    bins = (64,) if quick else (16, 32, 64, 128)
    others = [replace(first, length_bin=width) for width in bins]
    others += [] if quick else [replace(first, tokens=None, length_bin=width) for width in bins]
    return best([first, *others, replace(first, final=False)])
