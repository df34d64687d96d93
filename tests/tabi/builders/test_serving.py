"""Overhead of serving: measured through a real server, added to latencies, and part of the choice."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml

from tests.tabi.builders.command import Done, tidal_build
from tests.tabi.builders.conftest import Built, pinned_code, steady_latencies
from tests.tabi.builders.toy import Toy, tokenizer_of
from tidal.errors import NotFound
from tidal.repository.entries import ModelEntry
from tidal.tabi.manifest import TabiManifest, Target, load_tabi_manifest
from tidal.tabi.selection import select
from tidal.tabi.serving_overhead import EscalationOverhead, ServingOverhead
from tidal_builders.tabi import search as searching
from tidal_builders.tabi.measured_search import CascadeSearch, search_report
from tidal_builders.tabi.overhead import ServedTimes, disturbance_warning, overhead
from tidal_builders.tabi.probe import ProbeRoute
from tidal_builders.tabi.search import SearchResult, search
from tidal_builders.tabi.search_report import SearchReport
from tidal_builders.tabi.tables import remarks

pytestmark = pytest.mark.slow

CHEAP = ServingOverhead(
    processor="x",
    queries=1,
    alone_ms={"level0": 1.0, "level1": 2.0},
    onward=(EscalationOverhead(below="level0", above="level1", ms=0.5),),
    engine_scale={"level0": 1.0, "level1": 1.0},
)


def expensive(ms: float, pruned_ms: float) -> ServingOverhead:
    """Overhead of a server on which an escalation adds `ms`, or `pruned_ms` after pruning, in milliseconds."""
    onward = EscalationOverhead(below="level0", above="level1", ms=ms, pruned_ms=pruned_ms)
    return CHEAP.model_copy(update={"onward": (onward,)})


class TestOverhead:
    LEVELS = ("small", "middle", "large")
    PAIRS = ((0, 1), (0, 2), (1, 2))

    def test_is_what_was_added_to_the_engines(self) -> None:
        engines = np.random.default_rng(0).uniform(1, 3, (3, 50)) * np.array([[1], [2], [4]])
        added = {
            ProbeRoute((0,)): 2.0,
            ProbeRoute((1,)): 2.5,
            ProbeRoute((2,)): 3.0,
            ProbeRoute((0, 1)): 2.9,
            ProbeRoute((0, 2)): 2.7,
            ProbeRoute((1, 2)): 3.1,
            ProbeRoute((0, 1), pruned=True): 3.4,
        }
        served = np.array([engines[list(route.levels)].sum(axis=0) + ms for route, ms in added.items()])
        times = ServedTimes(tuple(added), np.arange(50), served, engines)
        for each in (served, engines):
            each[:, [3, 17, 40]] += (80, 250, 30)  # other load on the machine
        collected = np.concatenate([engines / np.array([[1], [2], [0.5]]), np.full((3, 10), 99)], axis=1)
        found = overhead(self.LEVELS, times, list(collected))
        assert found.queries == 50
        assert found.processor
        assert found.alone_ms == pytest.approx({"small": 2.0, "middle": 2.5, "large": 3.0}, abs=0.2)
        hops = {(each.below, each.above): (each.ms, each.pruned_ms) for each in found.onward}
        assert hops[("small", "middle")] == pytest.approx((0.9, 1.4), abs=0.3)
        assert hops[("small", "large")][0] == pytest.approx(0.7, abs=0.3)
        assert hops[("middle", "large")][0] == pytest.approx(0.6, abs=0.3)
        assert hops[("middle", "large")][1] is None
        assert found.engine_scale == pytest.approx({"small": 1.0, "middle": 2.0, "large": 0.5})
        (below, below_pruned), (above, _) = hops[("small", "middle")], hops[("middle", "large")]
        assert found.added(self.LEVELS, pruned=True) == (found.alone_ms["small"], below_pruned, above)
        assert found.added(self.LEVELS, pruned=False) == (found.alone_ms["small"], below, above)
        assert found.added(("large",), pruned=False) == (found.alone_ms["large"],)

    def test_means_are_those_that_were_served(self) -> None:
        """Served means hold even if an engine alone took longer than a served query."""
        routes = (*(ProbeRoute((place,)) for place in range(3)), *map(ProbeRoute, self.PAIRS))
        means = {(0,): 6.0, (1,): 8.0, (2,): 9.0, (0, 1): 12.0, (0, 2): 14.5, (1, 2): 20.0}
        served = np.array([np.full(20, means[route.levels]) for route in routes])
        engines = np.array([np.full(20, ms) for ms in (2.0, 3.0, 30.0)])
        collected = [np.full(25, ms) for ms in (1.0, 3.0, 25.0)]
        found = overhead(self.LEVELS, ServedTimes(routes, np.arange(20), served, engines), collected)
        for name, level in zip(self.LEVELS, range(3), strict=True):
            scaled = found.engine_scale[name] * collected[level][0]
            assert scaled + found.alone_ms[name] == pytest.approx(means[(level,)])
        assert found.engine_scale == pytest.approx({"small": 2.0, "middle": 1.0, "large": 9 / 25})
        assert found.added(("small", "middle"), pruned=False) == pytest.approx((4.0, 12.0 - 6.0 - 3.0))
        assert found.added(("middle", "large"), pruned=False) == pytest.approx((5.0, 20.0 - 8.0 - 9.0))
        assert found.added(("small", "large"), pruned=False) == pytest.approx((4.0, 0.0))  # not below 0

    @pytest.mark.parametrize(
        ("now", "served", "warned"),
        [(10.0, 15, False), (12.5, 15, False), (8.0, 15, False), (14.0, 15, True), (5.0, 15, True), (10.0, 9, True)],
    )
    def test_other_load_on_the_machine_causes_a_warning(self, now: float, served: float, warned: bool) -> None:
        rows = np.array([0, 2, 3, 4])
        collected = [np.array([4.0, 100.0, 4.0, 4.0, 4.0]), np.full(5, 10.0)]
        engines = np.array([np.full(4, 4.0), np.full(4, now)])
        through = np.array([np.full(4, 7.0), np.full(4, served), np.full(4, 20.0)])
        times = ServedTimes((ProbeRoute((0,)), ProbeRoute((1,)), ProbeRoute((0, 1))), rows, through, engines)
        warning = disturbance_warning(["small", "large"], times, collected)
        assert (warning is not None) == warned
        if warning is not None:
            assert f"large 10.00 ms, later {now:.2f} ms, and {served:.2f} ms when served" in warning


def searched(folder: Path, serving: ServingOverhead | None, *, prunes: bool = True) -> SearchResult:
    toy = Toy(noise=(0.8, 0.1), base_ms=(1.0, 5.0), gain=(6.0, 15.0), attention=(prunes, prunes))
    data = toy.data(500)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CUTOFFS", "SLOPES", "SCALES"):
            patch.setattr(searching, name, getattr(searching, name)[::3])
        return search(data, toy.facts(data, tokenizer_of(folder)), toy.rerun, metric="accuracy", serving=serving)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> SearchResult:
    return searched(tmp_path_factory.mktemp("engines"), None)


@pytest.fixture(scope="module")
def expensively_served(tmp_path_factory: pytest.TempPathFactory) -> SearchResult:
    """A search for a server on which an escalation takes longer than the engine of the large level."""
    return searched(tmp_path_factory.mktemp("served"), expensive(20.0, 15.0))


class TestSearch:
    def report(self, result: SearchResult, serving: ServingOverhead | None) -> SearchReport:
        large = next(each for each in result.candidates if each.levels == (1,))
        target = Target(accuracy=large.selection.score - 0.02)
        chosen = select(result.candidates, target)
        searched = CascadeSearch(
            result=result, rows={"calibration": 125, "selection": 125, "report": 250}, pairs=False, serving=serving
        )
        return search_report(searched, ["level0", "level1"], "accuracy", target, chosen)

    def test_levels_keep_their_engines_times(self, engines: SearchResult, expensively_served: SearchResult) -> None:
        assert [each.latency for each in expensively_served.levels] == [each.latency for each in engines.levels]

    @pytest.mark.parametrize("prunes", [True, False])
    def test_candidates_have_what_serving_adds(self, tmp_path: Path, prunes: bool) -> None:
        engines = searched(tmp_path, None, prunes=prunes)
        # Too little to change which candidates are kept.
        served = searched(tmp_path, expensive(0.02, 0.03), prunes=prunes)
        singles = [
            {each.levels[0]: each.selection.latency for each in result.candidates if len(each.levels) == 1}
            for result in (engines, served)
        ]
        for level, added in enumerate((1.0, 2.0)):
            assert singles[1][level].mean == pytest.approx(singles[0][level].mean + added)
            assert singles[1][level].p99 == pytest.approx(singles[0][level].p99 + added)
        plain = {each.name: each.selection for each in engines.candidates if len(each.levels) == 2}
        both = [each for each in served.candidates if len(each.levels) == 2 and each.name in plain]
        assert {each.pruning is not None for each in both} == {prunes}
        for each in both:
            before, after = plain[each.name], each.selection
            assert after.score == before.score
            hop = 0.02 if each.pruning is None else 0.03
            assert after.latency.mean == pytest.approx(before.latency.mean + 1.0 + hop * before.returned[1])

    def test_the_large_level_alone_is_chosen_if_it_is_faster(
        self, engines: SearchResult, expensively_served: SearchResult
    ) -> None:
        before = self.report(engines, None)
        assert before.chosen is not None
        assert len(before.candidates[before.chosen].levels) == 2
        assert not any("a cascade brings no advantage" in each for each in remarks(before))
        after = self.report(expensively_served, expensive(20.0, 15.0))
        assert after.chosen is not None
        assert after.candidates[after.chosen].levels == (1,)
        (remark,) = (each for each in remarks(after) if "a cascade brings no advantage" in each)
        assert "level1 alone" in remark
        assert "level0 is not loaded" in remark
        assert any("20.00 ms from level0 to level1 (15.00 ms with pruning)" in each for each in remarks(after))

    def test_cascades_without_pruning_have_the_overhead_without_pruning(self) -> None:
        assert CHEAP.added(("level0", "level1"), pruned=True) == (1.0, 0.5)
        assert expensive(3.0, 4.0).added(("level0", "level1"), pruned=True) == (1.0, 4.0)
        assert expensive(3.0, 4.0).added(("level0", "level1"), pruned=False) == (1.0, 3.0)


class Served(NamedTuple):
    manifest: TabiManifest
    done: Done


def rebuilt(built: Built, folder: Path, **fields: Any) -> Served:
    """Build the cascade again in a copy of the repository, with changed fields of the spec."""
    shutil.copytree(built.repository, folder / "repository")
    spec = folder / "reviews.yaml"
    spec.write_text(yaml.safe_dump({**yaml.safe_load(built.spec.read_text()), **fields}))
    with pinned_code(), steady_latencies():
        done = tidal_build(spec, "--repository", folder / "repository")
    assert done.code == 0, done.stderr
    latest = ModelEntry(folder / "repository/reviews").latest()
    assert latest is not None
    return Served(load_tabi_manifest(latest), done)


@pytest.fixture(scope="module")
def served(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return rebuilt(built, tmp_path_factory.mktemp("served"), latencies="served")


@pytest.mark.server
class TestServer:
    def test_the_overhead_is_measured_and_published(self, served: Served) -> None:
        serving = served.manifest.serving
        assert serving is not None, served.manifest.warnings
        assert serving.queries == served.manifest.rows["selection"]
        assert set(serving.alone_ms) == {"small", "large"}
        # The levels take microseconds but report milliseconds: the overhead is meaningless, but never negative.
        assert all(ms >= 0 for ms in serving.alone_ms.values())
        assert [(each.below, each.above) for each in serving.onward] == [("small", "large")]
        assert serving.onward[0].pruned_ms is not None

    def test_latencies_of_candidates_include_it(self, served: Served) -> None:
        manifest = served.manifest
        assert manifest.serving is not None
        for index, level in enumerate(manifest.levels):
            alone = next(each for each in manifest.candidates if each.levels == (index,))
            added = manifest.serving.alone_ms[level.name]
            assert alone.reported.latency.mean == pytest.approx(level.latency.mean + added)
            assert manifest.serving.engine_scale[level.name] > 0

    def test_it_is_printed(self, served: Served) -> None:
        assert "reviews: measure through a server" in served.done.stderr
        assert "reviews: serving adds to the engines' time: " in served.done.stdout
        assert re.search(r"served +served", served.done.stdout)
        assert not any("engines alone" in each for each in served.manifest.warnings)

    def test_levels_are_not_built_again(self, served: Served) -> None:
        assert [level.version for level in served.manifest.levels] == [1, 1]


def test_without_a_server_the_build_warns_that_latencies_exclude_serving(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> None:
        raise NotFound("no tritonserver on PATH")

    monkeypatch.setattr("tidal_builders.tabi.served_latency.find_installation", absent)
    found = rebuilt(built, tmp_path, latencies="served")
    assert found.manifest.serving is None
    assert any("of the engines alone" in each and "no tritonserver" in each for each in found.manifest.warnings)
    assert "reviews: warning: latencies are of the engines alone" in found.done.stdout
    assert found.manifest.chosen == load_tabi_manifest(built.repository / "reviews/1").chosen


def test_latencies_of_engines_require_no_server(built: Built) -> None:
    manifest = load_tabi_manifest(built.repository / "reviews/1")
    assert manifest.serving is None
    assert not any("engines alone" in each for each in manifest.warnings)
    assert re.search(r"engines +engines", built.done.stdout)
    assert "measure through a server" not in built.done.stderr
