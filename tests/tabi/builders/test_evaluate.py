from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from testing.candidates import candidate, manifest
from tidal.tabi.equations import confidence, reroute_probability
from tidal.tabi.manifest import Calibration, Expected, Metric, RegressionCalibration
from tidal.tabi.query_route import Route
from tidal_builders.tabi.data import LevelOutputs
from tidal_builders.tabi.evaluate import LevelChain, Weights, latency, score
from tidal_builders.tabi.weights import Tuner, by_accuracy

pytestmark = pytest.mark.slow

REGRESSION = RegressionCalibration(
    tolerance=0.5, values=(-1.0, 0.0, 1.0), deviations=(0.1, 0.4, 1.5), expected=(0.0, 0.4, 1.0), observed=(0, 0.5, 1)
)


def _chain(
    depth: int, count: int, *, metric: Metric = "accuracy", classes: int = 3, seed: int = 0
) -> tuple[LevelChain, list[LevelOutputs], list[Calibration], np.ndarray]:
    """Levels of random outputs, each better and slower than the one before."""
    generator = np.random.default_rng(seed)
    if metric == "accuracy":
        truth = generator.integers(0, classes, count)
        sense = np.eye(classes)[truth]
        calibrations = [Calibration(temperature=1.0 + 0.5 * level) for level in range(depth)]
    else:
        truth = generator.normal(size=count)
        sense, calibrations = truth[:, None], [Calibration(regression=REGRESSION)] * depth
    outputs = [
        LevelOutputs(
            (sense * (1 + level) + generator.normal(size=sense.shape)).astype(np.float32),
            None,
            generator.uniform(1, 2, count) * 3**level,
        )
        for level in range(depth)
    ]
    words = generator.integers(3, 20, count)
    removed = np.cumsum(generator.integers(0, 2, (depth - 1, count)), axis=0).reshape(depth - 1, count)
    chain = LevelChain(outputs, calibrations, truth, words=words, removed=removed, metric=metric)
    return chain, outputs, calibrations, truth


def _even(depth: int) -> tuple[Weights, ...]:
    return tuple(tuple([1 / levels] * levels) for levels in range(1, depth + 1))


@pytest.mark.parametrize("metric", ["accuracy", "r2"])
def test_figures_are_the_expectation_over_every_possible_route(metric: Metric) -> None:
    depth, count = 3, 5
    chain, outputs, calibrations, truth = _chain(depth, count, metric=metric, seed=4)
    weights: tuple[Weights, ...] = ((1.0,), (0.3, 0.7), (0.2, 0.2, 0.6))
    cutoff, slope = 0.5, 3.0
    escalates = [
        reroute_probability(confidence(calibration, each.logits), cutoff, slope)
        for calibration, each in zip(calibrations, outputs, strict=True)
    ]
    figures = np.zeros(3 + depth)
    total = 0.0
    for route in itertools.product(range(depth), repeat=count):
        chance, hits, errors, elapsed = 1.0, 0, 0.0, 0.0
        returned = np.bincount(route, minlength=depth) / count
        for query, last in enumerate(route):
            for level in range(last):
                chance *= escalates[level][query]
            if last < depth - 1:
                chance *= 1 - escalates[last][query]
            elapsed += sum(outputs[level].latency_ms[query] for level in range(last + 1))
            logits = [outputs[level].logits[query].astype(np.float64) for level in range(last + 1)]
            if metric == "accuracy":
                votes = [np.exp(each) / np.exp(each).sum() for each in logits]
                answer = sum(w * vote for w, vote in zip(weights[last], votes, strict=True))
                hits += int(np.argmax(answer) == truth[query])
            else:
                value = sum(w * float(each[0]) for w, each in zip(weights[last], logits, strict=True))
                errors += (value - truth[query]) ** 2
        result = hits / count if metric == "accuracy" else 1 - errors / ((truth - truth.mean()) ** 2).sum()
        figures += chance * np.array([result, elapsed / count, 0, *returned])
        total += chance
    assert total == pytest.approx(1)
    found = chain.expected(chain.reach(cutoff, slope), weights)
    assert found.score == pytest.approx(figures[0])
    assert found.latency.mean == pytest.approx(figures[1])
    assert found.returned == pytest.approx(figures[3:])


@pytest.mark.parametrize(("metric", "depth"), [("accuracy", 2), ("accuracy", 3), ("spearman", 3)])
def test_figures_are_the_means_of_routes_of_the_server(metric: Metric, depth: int) -> None:
    count, versions = 150, 40
    chain, outputs, calibrations, truth = _chain(depth, count, metric=metric)
    weights = _even(depth)
    found = chain.expected(chain.reach(0.6, 4.0), weights)
    whole = candidate("all", range(depth), cutoff=0.6, slope=4.0, weights=weights)
    served = manifest([whole], calibrations, "abc" if metric == "accuracy" else ())
    scores, elapsed, ended = [], [], []
    for version in range(versions):
        answers = []
        for query in range(count):
            route = Route(served, whole, b"%d" % query, 0, version, last_level=depth - 1)
            spent, last = outputs[0].latency_ms[query], 0
            while route.feed(outputs[route.level].logits[query]):
                last = route.level
                spent += outputs[last].latency_ms[query]
            answer = route.answer()
            assert answer.level == last + 1
            answers.append(answer.label if metric == "accuracy" else answer.value)
            elapsed.append(spent)
            ended.append(last)
        scores.append(score(metric, np.array(answers), truth))
    error = np.std(scores) / np.sqrt(versions)
    assert found.score == pytest.approx(np.mean(scores), abs=4 * error + 2e-3)
    assert found.latency.mean == pytest.approx(np.mean(elapsed), rel=0.02)
    assert found.returned == pytest.approx(np.bincount(ended, minlength=depth) / len(ended), abs=0.02)
    for name, share in (("p25", 25), ("p50", 50), ("p75", 75), ("p99", 99)):
        assert getattr(found.latency, name) == pytest.approx(np.percentile(elapsed, share), rel=0.06), name


def test_the_pruned_share_counts_only_words_of_escalated_queries() -> None:
    # One of two queries always escalates; 3 of its 10 words are pruned, then 2 more.
    sure, unsure = np.log([0.999, 0.001]), np.log([0.5, 0.5])
    outputs = [LevelOutputs(np.array([sure, unsure], np.float32), None, np.ones(2)) for _ in range(3)]
    chain = LevelChain(
        outputs,
        [Calibration()] * 3,
        np.array([0, 0]),
        words=np.array([8, 10]),
        removed=np.array([[4, 3], [6, 5]]),
        metric="accuracy",
    )
    found = chain.expected(chain.reach(0.6, 1000.0), _even(3))
    assert found.pruned == pytest.approx((3 + 5) / 20)
    assert found.returned == pytest.approx((0.5, 0, 0.5))


@given(
    st.lists(st.tuples(st.floats(0.1, 50), st.integers(0, 5)), min_size=1, max_size=40).filter(
        lambda rows: any(count for _, count in rows)
    )
)
@settings(deadline=None)
def test_weighted_percentiles_are_those_of_repeated_values(rows: list[tuple[float, int]]) -> None:
    rows = sorted(rows)
    values, counts = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    repeated = np.repeat(values, counts)
    found = latency(values, counts * 0.1)
    assert found.mean == pytest.approx(repeated.mean())
    for name, share in (("p25", 0.25), ("p50", 0.5), ("p75", 0.75), ("p99", 0.99)):
        assert getattr(found, name) == np.quantile(repeated, share, method="inverted_cdf"), name


@given(
    st.lists(st.tuples(st.integers(-6, 6), st.integers(-6, 6), st.integers(0, 3)), min_size=3, max_size=30).filter(
        lambda rows: sum(row[2] for row in rows) > 2
    )
)
@example([(0, 0, 2), (0, 0, 3), (0, 0, 1)])
@example([(0, 0, 0), (0, 3, 2), (0, 3, 3)])
@example([(1, 0, 1), (2, 0, 0), (1, 3, 3)])
@settings(deadline=None)
def test_weighted_scores_are_those_of_repeated_answers(rows: list[tuple[int, int, int]]) -> None:
    answers, truth, counts = (np.array([row[i] for row in rows]) for i in range(3))
    many, wanted = np.repeat(answers, counts), np.repeat(truth, counts)
    weights = counts / 7
    assert score("accuracy", answers, truth, weights) == pytest.approx((many == wanted).mean())
    varies = len(set(many)) > 1 and len(set(wanted)) > 1
    expected = {"pearson": stats.pearsonr, "spearman": stats.spearmanr}
    for metric, reference in expected.items():
        found = score(metric, answers, truth, weights)  # type: ignore[arg-type]
        assert found == pytest.approx(reference(many, wanted).statistic if varies else 0.0, abs=1e-9), metric
    spread = ((wanted - wanted.mean()) ** 2).sum()
    residual = ((wanted - many) ** 2).sum()
    assert score("r2", answers, truth, weights) == pytest.approx(1 - residual / spread if spread else 0.0, abs=1e-9)


@given(st.integers(0, 50), st.integers(2, 4), st.floats(0.01, 0.999999), st.floats(0.1, 60))
@settings(deadline=None, max_examples=40)
def test_invariants_for_any_cutoff_and_slope(seed: int, depth: int, cutoff: float, slope: float) -> None:
    chain, outputs, calibrations, _ = _chain(depth, 30, seed=seed)
    reach = chain.reach(cutoff, slope)
    assert (reach[0] == 1).all()
    assert (np.diff(reach, axis=0) <= 0).all()
    unsure = confidence(calibrations[0], outputs[0].logits) <= cutoff
    assert (reach[1][unsure] == 1).all()
    weights = by_accuracy(chain, reach)
    tuned = Tuner(chain).tune(reach, weights)
    for entries in (weights, tuned):
        assert [len(each) for each in entries] == list(range(1, depth + 1))
        assert [sum(each) for each in entries] == pytest.approx([1] * depth)
        found = chain.expected(reach, entries)
        assert sum(found.returned) == pytest.approx(1)
        assert 0 <= found.score <= 1 + 1e-12
        assert found.latency.p25 <= found.latency.p50 <= found.latency.p75 <= found.latency.p99
        assert (
            outputs[0].latency_ms.min() <= found.latency.mean <= sum(each.latency_ms.max() for each in outputs) + depth
        )


def test_a_cutoff_near_1_returns_nothing_early() -> None:
    chain, *_ = _chain(2, 100)
    assert chain.expected(chain.reach(1 - 1e-9, 10.0), _even(2)).returned == pytest.approx((0, 1))


def test_weights_follow_the_accuracy_on_escalated_queries() -> None:
    # The first level is right about both queries that return early, and about one of four that escalate.
    sure, unsure = [9.0, 0.0], [0.1, 0.0]
    truth = np.array([0, 0, 0, 1, 1, 1])
    first = LevelOutputs(np.array([sure, sure, unsure, unsure, unsure, unsure], np.float32), None, np.ones(6))
    second = LevelOutputs(np.array([[0, 1]] * 3 + [[0, 1]] * 2 + [[1, 0]], np.float32), None, np.ones(6))
    chain = LevelChain(
        [first, second],
        [Calibration()] * 2,
        truth,
        words=np.zeros(6, np.int64),
        removed=np.zeros((1, 6), np.int64),
        metric="accuracy",
    )
    reach = chain.reach(0.9, 1000.0)
    assert reach[1] == pytest.approx([0, 0, 1, 1, 1, 1])
    # One in four and two in four.
    assert by_accuracy(chain, reach)[1] == pytest.approx((1 / 3, 2 / 3), abs=0.005)


@pytest.mark.parametrize("metric", ["accuracy", "pearson"])
@pytest.mark.parametrize("depth", [2, 3])
def test_tuned_weights_are_the_best_there_are(metric: Metric, depth: int) -> None:
    chain, outputs, _, truth = _chain(depth, 60, metric=metric, seed=9)
    reach = chain.reach(0.5, 3.0)
    near = by_accuracy(chain, reach)
    tuned = Tuner(chain).tune(reach, near)
    answered = [reach[k] - (reach[k + 1] if k + 1 < depth else 0) for k in range(depth)]
    for levels in range(2, depth + 1):

        def loss(weights: Weights, levels: int = levels) -> float:
            total = 0.0
            for query in range(60):
                votes = [each.logits[query].astype(float) for each in outputs[:levels]]
                if metric == "accuracy":
                    votes = [np.exp(each) / np.exp(each).sum() for each in votes]
                vote = sum(w * each for w, each in zip(weights, votes, strict=True))
                wrong = vote.argmax() != truth[query] if metric == "accuracy" else (vote[0] - truth[query]) ** 2
                total += answered[levels - 1][query] * wrong
            return total

        divisions = 20 if levels == 2 else 10
        grid = [
            tuple(each / divisions for each in parts)
            for parts in itertools.product(range(divisions + 1), repeat=levels)
            if sum(parts) == divisions
        ]
        losses = np.array([loss(each) for each in grid])
        assert loss(tuned[levels - 1]) == pytest.approx(losses.min(), abs=1e-9)
        equal = [each for each, value in zip(grid, losses, strict=True) if value <= losses.min() + 1e-9]
        distance = [sum(abs(a - b) for a, b in zip(each, near[levels - 1], strict=True)) for each in (*equal,)]
        mine = sum(abs(a - b) for a, b in zip(tuned[levels - 1], near[levels - 1], strict=True))
        assert mine == pytest.approx(min(distance), abs=1e-9)


def test_levels_that_are_never_right_have_equal_weights() -> None:
    chain, *_ = _chain(2, 10, metric="r2", seed=1)
    worse = LevelChain(
        [LevelOutputs(np.full((10, 1), 1e3, np.float32), None, np.ones(10))] * 2,
        [Calibration(regression=REGRESSION)] * 2,
        chain.truth,
        words=np.zeros(10, np.int64),
        removed=np.zeros((1, 10), np.int64),
        metric="r2",
    )
    assert by_accuracy(worse, np.ones((2, 10))) == ((1.0,), (0.5, 0.5))


def test_figures_of_a_single_level_are_its_own() -> None:
    chain, outputs, _, truth = _chain(1, 40)
    found: Expected = chain.expected(chain.reach(None, None), ((1.0,),))
    assert found.score == pytest.approx((outputs[0].logits.argmax(axis=1) == truth).mean())
    assert found.latency.p75 == np.quantile(outputs[0].latency_ms, 0.75, method="inverted_cdf")
    assert (found.returned, found.pruned) == ((1.0,), 0.0)
