"""The figure of the results, and the ways to dispatch that are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.plots.bars import Bars, save
from tidal.simulator.arlo.entrances import Knowledge

#: The way that is not drawn: it is several times slower.
SHARE = "a share of the instances"
#: Ways to dispatch by name: what an entrance knows, and the margin of remote instances.
WAYS: Mapping[str, tuple[Knowledge, int]] = {
    "exact": (Knowledge.EXACT, 1),
    "answers and reports": (Knowledge.ANSWERS, 0),
    "answers and reports, local first": (Knowledge.ANSWERS, 1),
    "own requests": (Knowledge.OWN, 0),
    SHARE: (Knowledge.SHARE, 0),
}
TIDAL = "answers and reports, local first"
#: The baseline: one entrance that knows everything.
ONE = "one entrance"


def plot(document: Mapping[str, Any], file: Path) -> None:
    """Draw the mean latency of four entrances relative to one, by load, from the report's JSON document."""
    loads: Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]] = document["measured"]["loads"]

    def ratios(name: str, cells: Mapping[str, Sequence[Mapping[str, float]]], figure: str) -> list[float]:
        pairs = zip(cells[f"4: {name}"], cells[ONE], strict=True)
        return [each[figure] / one[figure] for each, one in pairs]

    panels = [
        Bars(
            f"{words} of four entrances (lower is better)",
            "one entrance = 1",
            [f"{float(load):.0%} load" for load in loads],
            {name: [ratios(name, cells, figure) for cells in loads.values()] for name in WAYS if name != SHARE},
        )
        for words, figure in (("mean latency", "mean_ms"), ("p98 latency", "p98_ms"))
    ]
    title = "Four entrances of a simulated cluster, by what each knows of the others' requests"
    save(panels, title, document["machine"], file, tidal=[TIDAL])
