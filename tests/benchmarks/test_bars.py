"""Bar plots, and the figures of the committed results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import redraw
from benchmarks.batcher import plot as of_batcher
from benchmarks.compositions import plot as of_compositions
from benchmarks.plots import bars, headlines, style
from benchmarks.plots.bars import Bars, save
from benchmarks.report import RESULTS, machine

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw with fewer pixels, which takes a fraction of the time."""
    monkeypatch.setattr(style, "DPI", 30)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Bars]:
    """What the plots are asked to draw, which they draw too."""
    panels: list[Bars] = []

    def keep(found: Sequence[Bars], *rest: Any, **options: Any) -> None:
        panels.extend(found)
        save(found, *rest, **options)

    for module in (of_batcher, of_compositions):
        monkeypatch.setattr(module, "save", keep)
    return panels


def is_png(file: Path) -> bool:
    return file.read_bytes().startswith(b"\x89PNG")


def test_bars_have_the_values_of_all_rounds(drawn: list[Bars], tmp_path: Path) -> None:
    def cell(latency: float) -> dict[str, Any]:
        return {"latencies_ms": [latency, latency + 2]}

    rounds = [{"Arlo": cell(a), "padded": cell(b)} for a, b in ((1, 10), (2, 30), (9, 20))]
    utility = [{"PetS": {"utility": 2.0, "offered": 8.0}}]
    measured = {
        "levels": {"alone": rounds, "loads": {"0.7": rounds[:1]}},
        "utility": {"1.5": utility},
        "utility_served": {"1.0": [{"PetS": {"utility": 0.5}}]},
    }
    of_compositions.plot({"measured": measured, "machine": machine()}, tmp_path / "plot.png")
    levels, simulated, served = drawn
    assert (levels.groups, levels.systems) == (
        ["alone", "at 70%"],
        {"Arlo": [[2, 3, 10], [2]], "padded": [[11, 31, 21], [11]]},
    )
    assert (simulated.groups, simulated.systems) == (["150%"], {"PetS": [[25]]})
    assert (served.groups, served.systems) == (["100%"], {"PetS": [[50]]})
    assert is_png(tmp_path / "plot.png")


@pytest.mark.parametrize("name", redraw.FIGURES)
def test_kept_results_are_drawn(name: str, drawn: list[Bars], tmp_path: Path) -> None:
    file = tmp_path / "plot.png"
    redraw.FIGURES[name](redraw.document(name), file)
    assert is_png(file)
    for panel in drawn:
        assert all(len(values) == len(panel.groups) for values in panel.systems.values())
        assert all(value > 0 for values in panel.systems.values() for rounds in values for value in rounds)


def test_every_system_has_a_headline_for_light_and_dark_pages(tmp_path: Path) -> None:
    written = headlines.write(tmp_path)
    assert {path.name for path in written} == {path.name for path in (RESULTS / "headlines").iterdir()}
    assert {path.stem.rpartition("-")[0] for path in written} == set(headlines.HEADLINES)
    assert all("</svg>" in path.read_text() for path in written)


def test_tidal_has_one_colour_and_comes_first_whatever_else_is_shown() -> None:
    shown = style.colours(["other", "Tidal, changed", "Tidal", "third"], ["Tidal"], ["Tidal, changed"])
    assert list(shown) == ["Tidal", "Tidal, changed", "other", "third"]
    assert shown["Tidal"] == style.TIDAL
    assert len(set(shown.values())) == len(shown)


def test_a_panel_has_a_bar_for_each_system_and_case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from matplotlib.axes import Axes

    heights: list[list[float]] = []
    bar = Axes.bar

    def counted(self: Axes, left: list[float], values: list[float], *rest: Any, **options: Any) -> Any:
        heights.append(list(values))
        return bar(self, left, values, *rest, **options)

    monkeypatch.setattr(Axes, "bar", counted)
    panel = Bars("title", "ms", ["a", "b"], {"one": [[1], [2]], "other": [[3, 5, 4], [4]]})
    bars.save([panel], "title", machine(), tmp_path / "plot.png", tidal=["other"])
    assert heights == [[4, 4], [1, 2]]
