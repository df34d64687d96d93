"""The benchmark of many nodes: what happens to them, and what is kept of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cluster.many_nodes import __main__ as many_nodes
from benchmarks.cluster.many_nodes.__main__ import FULL, QUICK, SLOW, outages, timeline
from benchmarks.cluster.many_nodes.plot import plot
from benchmarks.cluster.simulated.inputs import ClusterData
from benchmarks.report import Report
from tidal.simulator.arlo.nodes import NodesResult, NodesSample, SimulatedNodes


@pytest.mark.parametrize("size", [FULL, QUICK])
def test_ten_nodes_join_and_seven_are_lost_and_replaced(size: many_nodes.Size) -> None:
    found = outages(size)
    assert sum(each.at_s == 0 for each in found) == 10
    lost = [each for each in found if each.at_s]
    assert len(lost) == 7
    assert any(each.node < 4 for each in lost)
    assert all(each.start_s == size.start_s for each in lost)
    assert all(each.back_s < size.seconds for each in found)
    SimulatedNodes((8,) * 125, 4, outages=found)


def test_the_timeline_is_by_arrival() -> None:
    arrivals = np.array([1.5, 0.2, 1.1, 0.1])
    samples = tuple(NodesSample(at, 3, (1, 2), 0) for at in (1.0, 2.0, 3.0))
    result = NodesResult(arrivals, np.array([0.3, 0.1, 0.5, 0.3]), 2.0, 0.5, 0, (), samples)
    found = timeline(result, 2)
    assert found["p50_ms"] == [200.0, 400.0]
    assert found["p98_ms"] == pytest.approx([296.0, 496.0])
    assert (found["nodes"], found["instances"]) == ([3, 3], [[1, 2], [1, 2]])


def test_the_model_is_stretched_as_a_whole() -> None:
    assert SLOW.slo_s == pytest.approx(4.5)
    assert SLOW.times.static_s[-1] == pytest.approx(0.11)
    history = many_nodes._history(ClusterData(None), 0)
    small, large = many_nodes._CLUSTERS
    assert many_nodes._rate(history, large, 0.8) == pytest.approx(2 * many_nodes._rate(history, large, 0.4))
    stretched = replace(small, stream=SLOW)
    assert many_nodes._rate(history, large, 0.5) == pytest.approx(25 * many_nodes._rate(history, stretched, 0.5))


@pytest.mark.slow
def test_a_short_run_is_reported_and_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(many_nodes, "_LOAD", 0.05)
    clusters = tuple(replace(each, loads=(0.05, 0.1), entrances=(2, 4)) for each in many_nodes._CLUSTERS)
    monkeypatch.setattr(many_nodes, "_CLUSTERS", clusters)
    size = replace(QUICK, seconds=30, round_s=1)
    report, data = Report("many_nodes", quick=True), ClusterData(None)
    many_nodes._losses(report, data, size)
    many_nodes._entrances(report, data, size)
    claims = {claim.name: claim for claim in report.claims}
    assert claims["sim_failed_on_node_loss"].measured == 0
    assert claims["sim_1000_gpus_s"].measured > 0
    assert report.measured["losses"]["plans"]
    plot(report.document(), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
