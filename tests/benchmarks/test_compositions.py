"""What is compared with what where systems work together, and what figures say of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.compositions import outcome
from benchmarks.compositions.levels import (
    ARLO,
    ARLO_MODELS,
    ARLO_PARTITIONED,
    ARLO_STATIC,
    ONE_ENGINE,
    PADDED,
    SYSTEMS,
    write_system,
)
from benchmarks.compositions.prepare import CASCADE, PARTITIONED, STATIC, CascadeArtefacts, make_queries
from benchmarks.compositions.rounds import LevelsResult
from benchmarks.compositions.utility import (
    BY_UTILITY,
    HIGHEST_UTILITY,
    LEAST_TIME,
    OTAS,
    BatchScheduler,
    HighestUtilityFirst,
    OtasOrder,
    PetsOrder,
    TextCosts,
    UtilityResult,
    compare,
    draw_queries,
    simulate,
)
from benchmarks.report import Report
from benchmarks.tabi.crowd import OpenLoopResult
from benchmarks.tabi.serial import SerialResult
from demo.texts import LABELS
from tests.pets.policies.costs import make_profile
from tests.serve.folders import add
from tests.serve.partitioned import publish_partitioned
from tests.tabi.serving import cascades, write_cascade
from tidal.arlo.manifest import load_arlo_manifest
from tidal.catalog.graph import ModelGraph
from tidal.engine_model.manifest import load_engine_manifest
from tidal.server.launch import select_models
from tidal.tabi.manifest import load_tabi_manifest


class TestQueries:
    def test_all_differ_and_vary_in_length(self) -> None:
        queries = make_queries(300, 3, None)
        words = [len(text.split()) for (text,) in queries.texts]
        assert len(set(queries.texts)) == len(queries) == 300
        assert min(words) < 50 < 200 < max(words) <= 450
        assert set(queries.truth) == set(LABELS)
        assert queries == make_queries(300, 3, None)


LEVELS = ("l0", "l1")


@pytest.fixture
def artefacts(tmp_path: Path) -> CascadeArtefacts:
    """Manifests as a build would publish them, without engines."""
    repository = tmp_path / "built"
    write_cascade(repository / CASCADE, cascades())
    add(repository, CASCADE, backend="tabi")
    for level in LEVELS:
        for prefix in (CASCADE, STATIC):
            publish_partitioned(repository, f"{prefix}_{level}", [64, 512], placement="polymorphic")
        publish_partitioned(repository, f"{PARTITIONED}_{level}", [64, 512])
    return CascadeArtefacts(repository, "0")


class TestSystems:
    def test_one_cascade_on_levels_that_differ(self, artefacts: CascadeArtefacts, tmp_path: Path) -> None:
        repository = tmp_path / "served"
        systems = {system.name: system for system in SYSTEMS}
        fronts = {}
        for name, system in systems.items():
            write_system(repository, artefacts, system)
            fronts[name] = load_tabi_manifest(repository / system.model / "3")
        same = [each.model_copy(update={"name": "", "levels": ()}) for each in fronts.values()]
        assert all(each == same[0] for each in same)  # thresholds, tokenizers, version: draws are equal

        def runtimes(name: str) -> list[tuple[int, bool]]:
            level = fronts[name].levels[1]
            found = load_arlo_manifest(repository / level.model / str(level.version)).runtimes
            return [(runtime.max_length, runtime.dynamic) for runtime in found]

        assert runtimes(PADDED) == [(512, False)]
        assert runtimes(ONE_ENGINE) == [(512, False)]
        assert runtimes(ARLO) == runtimes(ARLO_STATIC) == runtimes(ARLO_MODELS) == [(64, False), (512, False)]
        for name, each in fronts.items():
            assert [level.model for level in each.levels] == [f"{systems[name].model}_{level}" for level in LEVELS]
            called = ModelGraph.read(repository).requires(systems[name].model)
            apart = name in (ARLO_MODELS, ARLO_PARTITIONED)
            assert called == (tuple(level.model for level in each.levels) if apart else ())

    def test_a_partitioned_level_brings_its_runtimes(self, artefacts: CascadeArtefacts, tmp_path: Path) -> None:
        repository = tmp_path / "served"
        (system,) = (each for each in SYSTEMS if each.name == ARLO_PARTITIONED)
        write_system(repository, artefacts, system)
        front = f"{system.model}_l0"
        found = ModelGraph.read(repository).partitioned(front)
        assert found is not None
        assert found.lengths == (64, 512)
        assert load_engine_manifest(repository / f"{front}_len64" / "1").front == front
        served = {entry.name for entry in select_models(ModelGraph.read(repository), [system.model]).served}
        of_levels = {f"{system.model}_{level}{end}" for level in LEVELS for end in ("", "_len64", "_len512")}
        assert served == {system.model, *of_levels}


def cell(mean: float, levels: list[int]) -> SerialResult:
    return SerialResult([0, 1], [mean - 1, mean + 1], ["a", "b"], levels)


def crowd(*latencies: float, errors: dict[str, int] | None = None) -> OpenLoopResult:
    return OpenLoopResult(10.0, list(latencies), errors or {}, 0.5, 0.0, "")


class TestOutcome:
    def test_ratios_are_of_a_round_and_claims_their_medians(self) -> None:
        systems = [system for system in SYSTEMS if system.name in (PADDED, ONE_ENGINE, ARLO)]
        alone = [
            {
                PADDED: cell(40, [1, 2]),
                ONE_ENGINE: cell(10 * round_number, [1, 2]),
                ARLO: cell(5 * round_number, [1, 2]),
            }
            for round_number in (1, 2, 3)
        ]
        alone[2][ARLO].levels[1] = 1
        loads = {0.7: [{PADDED: crowd(9, 9), ONE_ENGINE: crowd(6, 6), ARLO: crowd(3, 15, errors={"INTERNAL": 1})}]}
        report = Report("compositions", quick=True)
        outcome.add_levels(report, systems, LevelsResult(alone, [100.0], loads))
        claims = {claim.name: claim.measured for claim in report.claims}
        assert claims["levels_mean_vs_one_engine[alone]"] == pytest.approx(0.5)
        assert claims["levels_mean_vs_padded[alone]"] == pytest.approx(0.25)
        assert claims["levels_mean_vs_one_engine[70%]"] == pytest.approx(1.5)
        assert claims["levels_mean_vs_padded[70%]"] == pytest.approx(1.0)
        assert claims["levels_same_way"] == 0.5
        assert claims["levels_failed"] == 1
        assert [claim.holds for claim in report.claims if "one_engine" in claim.name] == [True, False, False]


# A pass takes 2 ms and something for every token, and each task in it something.
TABLES = make_profile(
    lambda length, n: 2 + 0.05 * length * n, {"a": lambda length, n: 0.1, "b": lambda length, n: 0.02 * n}, most=32
).tables()


class TestUtility:
    def test_with_time_for_all_every_system_earns_all(self) -> None:
        queries = draw_queries(TABLES, 40.0, 3.0, seed=1)
        systems: list[BatchScheduler] = [
            PetsOrder(TABLES, by_utility=False),
            PetsOrder(TABLES, by_utility=True),
            HighestUtilityFirst(TABLES, 16),
            OtasOrder(TextCosts.of(TABLES, queries)),
        ]
        for system in systems:
            found = simulate(system, queries, TABLES)
            assert found.share == pytest.approx(1.0)
            assert (found.in_time, found.late) == (len(queries), 0)

    @pytest.mark.slow
    def test_under_overload_whoever_knows_utilities_earns_more(self) -> None:
        (earned,) = compare(TABLES, [1.5], queries=1200, rounds=1, report_progress=lambda _text: None)[1.5]
        assert set(earned) == {LEAST_TIME, HIGHEST_UTILITY, OTAS, BY_UTILITY}
        for found in earned.values():
            assert 0 < found.in_time + found.late <= found.queries
            assert 0 < found.share < 1
        assert earned[BY_UTILITY].share > earned[OTAS].share > earned[LEAST_TIME].share

    def test_equal_seeds_give_equal_queries(self) -> None:
        first, again = (draw_queries(TABLES, 100.0, 1.0, seed=3) for _ in range(2))
        assert [(q.arrival, q.length, q.utility) for q in first] == [(q.arrival, q.length, q.utility) for q in again]

    def test_claims_are_medians_of_ratios_within_a_round(self) -> None:
        def earned(utility: float) -> UtilityResult:
            return UtilityResult(utility, 10.0, 5, 0, 10, 0.1)

        rounds = [
            {LEAST_TIME: earned(4), HIGHEST_UTILITY: earned(8), OTAS: earned(5), BY_UTILITY: earned(6)},
            {LEAST_TIME: earned(2), HIGHEST_UTILITY: earned(8), OTAS: earned(5), BY_UTILITY: earned(6)},
        ]
        report = Report("compositions", quick=True)
        outcome.add_utility(report, {1.5: rounds})
        claims = {claim.name: claim for claim in report.claims}
        assert claims["utility_vs_pets[150%]"].measured == pytest.approx((1.5 + 3.0) / 2)
        assert not claims["utility_vs_highest_utility_first[150%]"].holds
