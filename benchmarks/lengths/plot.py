"""The figure of the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.plots.bars import Bars, save

#: What the build chose.
AUTO = "auto"
_DRAWN = (AUTO, "dynamic", "1 even", "8 even", "powers of two", "8 shares of the texts")


def plot(document: Mapping[str, Any], file: Path) -> None:
    """Draw the mean latency of each ladder relative to the automatic one, by distribution."""
    means: Mapping[str, Mapping[str, Sequence[float]]] = document["measured"]["mean_ms"]
    panels = [
        Bars(
            f"lengths of {name} (lower is better)",
            "mean latency, auto = 1",
            [""],
            {ladder: [[own / auto for own, auto in zip(of[ladder], of[AUTO], strict=True)]] for ladder in _DRAWN},
        )
        for name, of in means.items()
    ]
    title = "Mean latency of a lone query, by the lengths of the runtimes"
    save(panels, title, document["machine"], file, tidal=[AUTO])
