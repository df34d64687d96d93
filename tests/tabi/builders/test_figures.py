from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from tests.tabi.builders.toy import Toy, tokenizer_of
from tidal.tabi.manifest import Metric, Target
from tidal.tabi.selection import select
from tidal_builders.tabi import search as searching
from tidal_builders.tabi.figures import plot_candidates, plot_reliability
from tidal_builders.tabi.measured_search import CascadeSearch, search_report
from tidal_builders.tabi.pareto import pareto_front
from tidal_builders.tabi.search import search
from tidal_builders.tabi.search_report import SearchReport
from tidal_builders.tabi.tables import candidate_table, level_table

pytestmark = pytest.mark.slow


def _report(folder: Path, metric: Metric = "accuracy") -> SearchReport:
    toy = Toy(noise=(1.5, 0.2), base_ms=(1.0, 5.0), classes=3 if metric == "accuracy" else 1)
    data = toy.data(400)
    levels = toy.facts(data, tokenizer_of(folder))
    tolerance = None if metric == "accuracy" else 1.0
    result = search(
        data, levels[::-1], lambda level, texts: toy.rerun(1 - level, texts), metric=metric, tolerance=tolerance
    )
    target = Target(accuracy=result.candidates[-1].selection.score - 0.02)
    rows = {"calibration": 100, "selection": 100, "report": 200}
    searched = CascadeSearch(result=result, rows=rows, pairs=False)
    return search_report(searched, ["large", "small"], metric, target, select(result.candidates, target))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> SearchReport:
    return _report(tmp_path_factory.mktemp("report"))


def _shown(table: object, width: int = 220) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def test_the_report_is_the_same_after_json(report: SearchReport) -> None:
    assert SearchReport.model_validate_json(report.model_dump_json()) == report
    assert [each.name for each in report.levels] == ["small", "large"]


def test_tables_show_levels_and_candidates(report: SearchReport) -> None:
    levels = _shown(level_table(report))
    for level in report.levels:
        assert f"{level.calibration.temperature:.2f}" in levels
        assert f"{level.calibration.ece_after:.3f}" in levels
        assert f"{level.score:.4f}" in levels
    candidates = _shown(candidate_table(report))
    assert report.chosen is not None
    chosen = report.candidates[report.chosen]
    assert f"* {chosen.name} " in candidates
    assert f"{chosen.reported.score:.4f}" in candidates
    assert f"{chosen.reported.latency.mean:.2f}" in candidates
    assert "level0+level1 c=" in candidates
    assert f"of {len(report.candidates)} candidates, kept of {report.tried} tried" in candidates
    assert "weights after 2 levels " + " ".join(f"{each:.2f}" for each in chosen.weights[1]) in candidates


def test_the_table_shows_few_candidates_and_highlights_the_chosen(report: SearchReport) -> None:
    assert report.chosen is not None
    table = candidate_table(report)
    names = [cell[2:] for cell in table.columns[0].cells]
    bold = [name for name, row in zip(names, table.rows, strict=True) if row.style == "bold"]
    assert bold == [report.candidates[report.chosen].name]
    assert len(names) <= 12 < len(report.candidates)
    assert {"level0", "level1"} <= set(names)
    # Both ways to weigh the answers of levels are shown.
    assert {each.weighting for each in report.candidates if each.name in names} == {None, "accuracy", "tuned"}


@pytest.mark.parametrize("width", [80, 100, 10_000])
def test_no_cell_is_truncated(report: SearchReport, width: int) -> None:
    for table in (level_table(report), candidate_table(report)):
        shown = _shown(table, width)
        assert "…" not in shown
        for column in table.columns[1:]:
            assert all(f" {cell}" in shown for cell in column.cells)
    lines = _shown(candidate_table(report), 10_000).splitlines()
    assert all(any(each.startswith(str(name)) for each in lines) for name in candidate_table(report).columns[0].cells)


def test_the_front_holds_exactly_the_undominated_candidates(report: SearchReport) -> None:
    figures = [(each.selection.score, each.selection.latency.mean) for each in report.candidates]
    expected = [
        number
        for number, (score, mean) in enumerate(figures)
        if not any((s >= score and m < mean) or (s > score and m <= mean) for s, m in figures)
    ]
    found = pareto_front(report.candidates)
    assert {figures[number] for number in found} == {figures[number] for number in expected}
    assert [figures[number][1] for number in found] == sorted(figures[number][1] for number in found)


@pytest.mark.parametrize("target", [Target(accuracy=0.8), Target(latency_ms=3.0), Target(escalation_rate=0.5)])
def test_plots_are_written(report: SearchReport, target: Target, tmp_path: Path) -> None:
    report = report.model_copy(update={"target": target})
    plot_candidates(report, tmp_path / "candidates.png")
    assert (tmp_path / "candidates.png").read_bytes().startswith(b"\x89PNG")


def test_tables_and_plots_of_a_regression(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "SLOPES", searching.SLOPES[:1])
    monkeypatch.setattr(searching, "SCALES", searching.SCALES[:1])
    report = _report(tmp_path, "pearson")
    assert SearchReport.model_validate_json(report.model_dump_json()) == report
    assert "pearson" in _shown(level_table(report))
    assert "level0+level1 " in _shown(candidate_table(report))
    plot_reliability(report, tmp_path / "reliability.png")
    assert (tmp_path / "reliability.png").read_bytes().startswith(b"\x89PNG")
