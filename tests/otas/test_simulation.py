"""Simulating OTAS's policies on a virtual clock: outcomes, traces, and the baseline that switches models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from tests.otas.policies.profiles import LINEAR, query
from tidal.errors import InvalidArgument
from tidal.otas.policies import Batch, FixedPolicy, PaperPolicy, ParetoPolicy, Query
from tidal.simulator.otas import (
    ModelSwitching,
    ModelVariant,
    QueryTrace,
    QueryType,
    SizeByLoad,
    fluctuating,
    simulate,
    squeezed,
)

TYPES = (QueryType("easy", 0.6, 0.3), QueryType("hard", 1.0, 1.0))


class TestOutcomes:
    def test_by_hand(self) -> None:
        # At γ 0 a query takes 2 ms. The second and third wait 1 ms for the first; the third cannot be in time.
        queries = [query(0.0, 1.0), query(0.001, 1.0, 0.5, "hard"), query(0.001, 0.0015)]
        result = simulate(FixedPolicy(LINEAR, 0), LINEAR, queries)
        assert (result.queries, result.late, result.evicted, result.batches) == (3, 0, 1, 2)
        assert (result.right, result.wrong) == (pytest.approx(0.95 + 0.6), pytest.approx(0.05 + 0.4))
        assert (result.offered, result.utility) == (2.5, pytest.approx(0.95 + 0.5 * 0.6))
        assert result.shares == pytest.approx((1.55 / 3, 0.45 / 3, 0.0, 1 / 3))
        assert (result.busy_s, result.ended) == (pytest.approx(0.004), pytest.approx(0.004))
        assert result.by_gamma == {0: 2}
        assert result.accuracies == [0.95, 0.6]

    def test_a_batch_that_takes_longer_than_predicted_is_late(self) -> None:
        result = simulate(FixedPolicy(LINEAR, 0), LINEAR, [query(0.0, 0.0025)], lambda batch: 0.003)
        assert (result.late, result.evicted, result.utility) == (1, 0, 0.0)

    def test_the_clock_waits_for_the_next_query(self) -> None:
        result = simulate(FixedPolicy(LINEAR, 0), LINEAR, [query(0.0, 1.0), query(7.5, 1.0)])
        assert result.ended == pytest.approx(7.502)
        assert result.utility == pytest.approx(1.9)

    def test_no_queries(self) -> None:
        assert simulate(FixedPolicy(LINEAR, 0), LINEAR, []).shares == (0, 0, 0, 0)

    @pytest.mark.parametrize("make", [PaperPolicy, ParetoPolicy])
    def test_every_query_has_an_outcome(self, make: type[PaperPolicy | ParetoPolicy]) -> None:
        result = simulate(make(LINEAR), LINEAR, QueryTrace([300.0, 900.0, 100.0, 700.0], TYPES))
        assert result.queries > 1500
        assert sum(result.shares) == pytest.approx(1.0)
        assert sum(result.by_gamma.values()) + result.evicted == result.queries
        assert result.late == 0  # latencies are proportional to queries: both predict them
        assert len(result.by_gamma) > 1


class TestTraces:
    def test_are_deterministic(self) -> None:
        trace = QueryTrace([50.0, 0.0, 20.0], TYPES)
        first, second = ([(each.task, each.arrival, each.deadline, each.utility) for each in trace] for _ in range(2))
        assert first == second
        arrivals = [arrival for _, arrival, _, _ in first]
        assert arrivals == sorted(arrivals)
        counts = Counter(int(arrival) for arrival in arrivals)
        assert (counts[1], 30 < counts[0] < 75, 8 < counts[2] < 36) == (0, True, True)
        for task, arrival, deadline, utility in first:
            assert (task, utility) in {("easy", 0.3), ("hard", 1.0)}
            assert deadline - arrival == pytest.approx(0.6 if task == "easy" else 1.0)

    def test_fluctuating_rates_have_the_given_limits_and_mean(self) -> None:
        rates = fluctuating(1800, 200, 700, 350)
        assert len(rates) == 1800
        assert min(rates) >= 200
        assert max(rates) <= 700
        assert np.mean(rates) == pytest.approx(350)
        assert max(rates) > 600
        assert 1.5 < 1800 / len(np.flatnonzero(np.diff(rates))) < 4.5  # seconds that a rate is held
        assert rates != fluctuating(1800, 200, 700, 350, seed=1)

    def test_counts_are_compressed_to_fewer_seconds(self) -> None:
        assert squeezed([1, 2, 3, 4, 5, 6, 7], 2, 14) == pytest.approx([6, 14, 22])

    @pytest.mark.parametrize(
        ("make", "text"),
        [
            (lambda: QueryTrace([], TYPES), "rates must be one or more finite"),
            (lambda: QueryTrace([-1.0], TYPES), "queries per second of at least 0"),
            (lambda: QueryTrace([1.0], ()), "types must not be empty"),
            (lambda: fluctuating(9, 200, 700, 800), "mean must lie between low and high, got 200, 800, 700"),
            (lambda: fluctuating(9, 200, 700, 300, held_s=0.5), "held_s must be at least 1 s, got 0.5"),
            (lambda: squeezed([1, 2], 3, 1.0), "counts must be at least 3"),
            (lambda: squeezed([0, 0], 2, 1.0), "not all 0"),
        ],
    )
    def test_invalid_arguments_are_refused(self, make: object, text: str) -> None:
        with pytest.raises(InvalidArgument, match=text):
            make()  # type: ignore[operator]


class TestSwitching:
    SMALL = ModelVariant(1000.0, 0.1, {"easy": 0.8, "hard": 0.5})
    BASE = ModelVariant(100.0, 0.2, {"easy": 0.9, "hard": 0.6})
    LARGE = ModelVariant(10.0, 0.4, {"easy": 1.0, "hard": 0.7})

    def run(self, queries: Sequence[Query]) -> tuple[dict[int, int], int, float, int]:
        """Queries by variant, loads, seconds that the engine ran or loaded, and evicted queries."""
        variants = (self.SMALL, self.BASE, self.LARGE)
        policy = ModelSwitching(variants, [[size / each.throughput for size in range(65)] for each in variants])
        result = simulate(policy, policy.profile, queries, lambda batch: batch.seconds)
        return result.by_gamma, policy.loads, result.busy_s, result.evicted

    def test_the_medium_model_is_loaded_at_first(self) -> None:
        assert self.run([query(0.0, 1.0)]) == ({1: 1}, 0, pytest.approx(0.01), 0)

    def test_the_size_is_chosen_once_per_period(self) -> None:
        size = SizeByLoad([100.0, 10.0, 1.0])
        assert size.place == 1
        for moment in np.arange(0.0, 0.99, 1 / 30):
            size.arrived(float(moment))
            assert not size.look(float(moment))
        assert size.look(1.0)
        assert size.place == 0  # 30 a second
        assert not size.look(1.99)
        assert size.look(2.0)
        assert size.place == 2  # no arrivals in the last second
        assert not size.look(3.0)

    def test_a_low_load_switches_to_the_largest_model(self) -> None:
        assert self.run([query(2.0, 1.0), query(2.6, 1.0)]) == ({2: 2}, 1, pytest.approx(0.4 + 0.2), 0)

    def test_a_high_load_switches_to_the_smallest_model(self) -> None:
        crowd = [query(1.0 + i / 200, 1.0) for i in range(201)]
        by_variant, loads, _, _ = self.run(crowd)
        assert loads == 2  # at the first query the load is still low
        assert by_variant[0] > 100

    def test_queries_that_cannot_wait_for_loading_are_evicted(self) -> None:
        queries = [query(2.0, 0.3), query(2.05, 0.3), query(2.45, 0.3)]
        assert self.run(queries) == ({2: 1}, 1, pytest.approx(0.1), 2)

    def test_no_other_size_is_selected_while_one_is_loaded(self) -> None:
        slow, executed = ModelVariant(1000.0, 3.0, self.SMALL.accuracies), list[float]()
        variants = (slow, self.BASE)
        policy = ModelSwitching(variants, [[size / each.throughput for size in range(65)] for each in variants])

        def seconds(batch: Batch) -> float:
            executed.extend(each.arrival for each in batch.queries)
            return batch.seconds

        # The second of the two is there at first. After a second of 200 queries the first one is loaded, until about
        # 4 s; from 2.5 s on the second one would do.
        crowd = [query(i / 200, 0.3) for i in range(301)]
        crowd += [query(2.5 + i / 10, 0.3) for i in range(30)]
        simulate(policy, policy.profile, crowd, seconds)
        assert not [arrival for arrival in executed if 1.3 < arrival < 3.6]
        assert max(executed) == pytest.approx(5.4)
        assert policy.loads == 2

    def test_sizes_may_be_selected_by_other_rates_than_they_sustain(self) -> None:
        variants = (self.SMALL, self.BASE, self.LARGE)
        seconds = [[size / each.throughput for size in range(65)] for each in variants]
        crowd = [query(i / 200, 0.6) for i in range(400)]
        by_variant = {}
        for up_to in (None, (1e9, 500.0, 50.0), (1e9, 500.0, 300.0)):
            policy = ModelSwitching(variants, seconds, up_to=up_to)
            by_variant[up_to] = set(simulate(policy, policy.profile, crowd, lambda batch: batch.seconds).by_gamma)
        # At 200 a second the small one sustains it; the base and the large one do not.
        assert list(by_variant.values()) == [{0, 1}, {1}, {1, 2}]
