"""What plots of bars show, and that kept results can be drawn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bars
from benchmarks.bars import Bars, save
from benchmarks.batcher import plot as of_batcher
from benchmarks.compositions import plot as of_compositions
from benchmarks.report import RESULTS


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Bars]:
    """What the plots are asked to draw, which they draw too."""
    panels: list[Bars] = []

    def keep(found: Sequence[Bars], file: Path) -> None:
        panels.extend(found)
        save(found, file)

    for module in (of_batcher, of_compositions):
        monkeypatch.setattr(module, "save", keep)
    return panels


def kept(name: str) -> dict[str, Any]:
    measured: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())["measured"]
    return measured


def is_png(file: Path) -> bool:
    return file.read_bytes().startswith(b"\x89PNG")


def test_bars_are_medians_of_the_rounds(drawn: list[Bars], tmp_path: Path) -> None:
    def cell(latency: float) -> dict[str, Any]:
        return {"latencies_ms": [latency, latency + 2]}

    rounds = [{"Arlo": cell(a), "padded": cell(b)} for a, b in ((1, 10), (2, 30), (9, 20))]
    utility = [{"PetS": {"utility": 2.0, "offered": 8.0}}]
    measured = {
        "levels": {"alone": rounds, "loads": {"0.7": rounds[:1]}},
        "utility": {"1.5": utility},
        "utility_served": {"1.0": [{"PetS": {"utility": 0.5}}]},
    }
    of_compositions.plot(measured, tmp_path / "plot.png")
    levels, simulated, served = drawn
    assert (levels.groups, levels.systems) == (["alone", "at 70%"], {"Arlo": [3, 2], "padded": [21, 11]})
    assert (simulated.groups, simulated.systems) == (["150%"], {"PetS": [25]})
    assert (served.groups, served.systems) == (["100%"], {"PetS": [50]})
    assert is_png(tmp_path / "plot.png")


@pytest.mark.parametrize("name", ["compositions", "batcher", "shared_level", "decoder_tasks"])
def test_kept_results_are_drawn(name: str, drawn: list[Bars], tmp_path: Path) -> None:
    file, measured = tmp_path / "plot.png", kept(name)
    if name == "batcher":
        of_batcher.plot(measured, "all at once", file)
    elif name == "compositions":
        of_compositions.plot(measured, file)
    else:
        of_compositions.plot_sharing(measured, file)
    assert is_png(file)
    assert len(drawn) == 3
    for panel in drawn:
        assert all(len(values) == len(panel.groups) for values in panel.systems.values())
        assert all(value > 0 for values in panel.systems.values() for value in values)


def test_a_panel_has_a_bar_for_each_system_and_case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from matplotlib.axes import Axes

    heights: list[list[float]] = []
    bar = Axes.bar

    def counted(self: Axes, left: list[float], values: list[float], *rest: Any, **options: Any) -> Any:
        heights.append(list(values))
        return bar(self, left, values, *rest, **options)

    monkeypatch.setattr(Axes, "bar", counted)
    bars.save([Bars("title", "ms", ["a", "b"], {"one": [1, 2], "other": [3, 4]})], tmp_path / "plot.png")
    assert heights == [[1, 2], [3, 4]]
