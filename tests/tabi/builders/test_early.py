"""The fit of the early router, and the figures of cascades with it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from tests.tabi.builders.toy import Toy
from tidal.serving.softmax import softmax
from tidal.tabi.equations import confidence, reroute_probability
from tidal.tabi.manifest import Candidate
from tidal.text.words import WordTokenizer
from tidal_builders.tabi import search as searching
from tidal_builders.tabi.combinations import CombinationEvaluator
from tidal_builders.tabi.data import CALIBRATION, REPORT, SELECTION, LabelledData, LevelOutputs
from tidal_builders.tabi.early import BUCKETS, cross_entropy, fit, fit_router, ngram_features
from tidal_builders.tabi.early_routing import EarlyRouting
from tidal_builders.tabi.pareto import Configuration
from tidal_builders.tabi.search import SearchResult, search

GENERATOR = np.random.default_rng(0)


class TestFit:
    @pytest.mark.parametrize("penalty", [0.01, 1.0, 20.0])
    def test_is_that_of_scikit_learn(self, penalty: float) -> None:
        features = GENERATOR.normal(size=(60, 8))
        targets = GENERATOR.random(60)
        weights, bias = fit(csr_array(features), targets, penalty)
        # A probability as the target is one query of each class, with these weights.
        model = LogisticRegression(C=1 / penalty, tol=1e-10, max_iter=10_000)
        both = np.concatenate([features, features])
        model.fit(both, [1] * 60 + [0] * 60, sample_weight=np.concatenate([targets, 1 - targets]))
        np.testing.assert_allclose(weights, model.coef_[0], atol=1e-3)
        assert bias == pytest.approx(model.intercept_[0], abs=1e-3)

    @settings(max_examples=30, deadline=None)
    @given(st.integers(1, 12), st.integers(1, 5), st.floats(0.01, 10), st.integers(0, 1000))
    def test_no_step_improves_it(self, rows: int, columns: int, penalty: float, seed: int) -> None:
        generator = np.random.default_rng(seed)
        features, targets = generator.normal(size=(rows, columns)), generator.uniform(0.05, 0.95, rows)
        weights, bias = fit(csr_array(features), targets, penalty)

        def objective(moved: np.ndarray, shift: float) -> float:
            estimates = expit(features @ moved + shift)
            return rows * cross_entropy(targets, estimates) + penalty / 2 * float(moved @ moved)

        least = objective(weights, bias)
        for step in (*np.eye(columns), *-np.eye(columns)):
            assert objective(weights + 0.01 * step, bias) >= least - 1e-6
        for shift in (0.01, -0.01):
            assert objective(weights, bias + shift) >= least - 1e-6

    def test_estimates_as_the_server_does(self) -> None:
        texts = [("good film",), ("bad film , very bad",), ("",), ("good",)]
        fitted, _ = fit_router(texts, np.array([0.1, 0.9, 0.5, 0.2]))
        ours = expit(ngram_features(texts, BUCKETS) @ np.array(fitted.weights) + fitted.bias)
        served = [fitted.router.difficulty([text.encode() for text in query]) for query in texts]
        np.testing.assert_allclose(served, ours, atol=1e-9)

    def test_finds_a_word_that_makes_queries_difficult(self) -> None:
        texts = [(f"w{number} w{number % 7} {'twist' if number % 3 == 0 else 'plain'}",) for number in range(150)]
        difficult = np.array([0.8 if number % 3 == 0 else 0.1 for number in range(150)])
        fitted, held_out = fit_router(texts, difficult)
        assert fitted.loss < fitted.constant_loss - 0.1
        assert held_out[difficult > 0.5].min() > held_out[difficult < 0.5].max()

    def test_estimates_of_known_queries_do_not_know_them(self) -> None:
        """Random targets cannot be estimated, and the copy of a query is left out with it."""
        texts = [(f"a{number // 2} b{number // 2} c{number // 2}",) for number in range(200)]
        targets = np.repeat(GENERATOR.integers(0, 2, 100), 2).astype(float)
        _, held_out = fit_router(texts, targets)
        assert np.corrcoef(held_out, targets)[0, 1] < 0.2


@pytest.fixture(scope="module")
def world(tokenizer: WordTokenizer) -> tuple[Toy, LabelledData, CombinationEvaluator, EarlyRouting]:
    toy = Toy(noise=(0.6, 0.1), base_ms=(1.0, 5.0))
    data = toy.data(400)
    facts = toy.facts(data, tokenizer)
    evaluator = CombinationEvaluator(data, facts, toy.rerun, metric="accuracy", tolerance=None)
    return toy, data, evaluator, EarlyRouting(evaluator, data, facts)


def configuration(evaluator: CombinationEvaluator, early: float | None, pruning: float | None) -> Configuration:
    weights = ((1.0,), (0.4, 0.6))
    single = evaluator.single(0).selection
    return Configuration((0, 1), pruning, 0.7, 10.0, "accuracy", weights, single, 0.0, early)


@pytest.mark.parametrize("pruning", [None, 0.7])
@pytest.mark.parametrize("part", [CALIBRATION, SELECTION, REPORT])
def test_figures_are_those_of_every_query_by_itself(
    world: tuple[Toy, LabelledData, CombinationEvaluator, EarlyRouting], part: int, pruning: float | None
) -> None:
    _, data, evaluator, routing = world
    one = configuration(evaluator, None, pruning)
    middle = routing.variants(one)[-1]
    rows = np.flatnonzero(data.part == part)
    estimates = routing._of(0)
    run = evaluator.run((0, 1), pruning, rows)
    whole = evaluator.run((1,), None, rows).outputs[0]
    calibration = evaluator.calibrated[0].calibration
    right, share, spent, first, words, removed = 0.0, 0, 0.0, 0.0, 0.0, 0.0
    for place, row in enumerate(rows.tolist()):
        truth = data.truth[row]
        small, large = (outputs.logits[place] for outputs in run.outputs)
        times = [outputs.latency_ms[place] for outputs in run.outputs]
        if estimates.difficulties[row] > (middle.early or 0.0):
            share += 1
            right += whole.logits[place].argmax() == truth
            spent += whole.latency_ms[place]
            continue
        onward = float(reroute_probability(float(confidence(calibration, small)), 0.7, 10.0))
        both = 0.4 * softmax(small) + 0.6 * softmax(large)
        right += (1 - onward) * (small.argmax() == truth) + onward * (both.argmax() == truth)
        spent += times[0] + onward * times[1]
        first += 1 - onward
        words += onward * run.words[place]
        removed += onward * run.removed[0, place]
    found = routing.expected(middle, part)
    assert 0 < share / len(rows) < 1
    assert found.score == pytest.approx(right / len(rows))
    assert found.latency.mean == pytest.approx(spent / len(rows) + estimates.took_ms)
    assert found.returned == pytest.approx((first / len(rows), 1 - first / len(rows)))
    assert found.pruned == pytest.approx(removed / words if words else 0.0)
    assert routing.right(middle, part).mean() == pytest.approx(found.score)


def test_thresholds_skip_the_shares_that_are_tried(
    world: tuple[Toy, LabelledData, CombinationEvaluator, EarlyRouting],
) -> None:
    _, data, evaluator, routing = world
    variants = routing.variants(configuration(evaluator, None, None))
    estimates = routing._of(0).difficulties[data.part == CALIBRATION]
    shares = [float((estimates > (each.early or 0.0)).mean()) for each in variants]
    assert shares == pytest.approx([0.05, 0.1, 0.2, 0.3, 0.5], abs=0.03)
    means = [each.selection.returned[0] for each in variants]
    assert all(a >= b for a, b in itertools.pairwise(means))


def test_estimates_of_the_calibration_part_are_by_routers_that_do_not_know_the_query(
    world: tuple[Toy, LabelledData, CombinationEvaluator, EarlyRouting],
) -> None:
    toy, data, evaluator, routing = world
    rows = np.flatnonzero(data.part == CALIBRATION)
    texts = [data.texts[row] for row in rows]
    sure = confidence(evaluator.calibrated[0].calibration, toy.outputs(0, texts).logits)
    fitted, held_out = fit_router(texts, 1 - sure)
    found = routing._of(0)
    np.testing.assert_allclose(found.difficulties[rows], held_out)
    assert found.fitted == fitted
    new = np.flatnonzero(data.part != CALIBRATION)
    wanted = [fitted.router.difficulty([text.encode() for text in data.texts[row]]) for row in new]
    np.testing.assert_allclose(found.difficulties[new], wanted)


@pytest.mark.slow
def test_a_search_keeps_early_routing_where_the_text_says_what_is_difficult(
    tokenizer: WordTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUTOFFS", "SLOPES", "SCALES"):
        monkeypatch.setattr(searching, name, getattr(searching, name)[::4])
    world = Blind(noise=(0.1, 0.1), base_ms=(2.0, 5.0))
    data = world.data(700)
    found = search(data, world.facts(data, tokenizer), world.rerun, metric="accuracy", early_router=True)
    early = [each for each in found.candidates if each.early is not None]
    assert early
    assert [each.level for each in found.routers] == [0]
    assert found.routers[0].fitted.loss < found.routers[0].fitted.constant_loss
    assert all(each.name.endswith(f"early={each.early:g}") for each in early)
    # Difficult queries no longer pay for both levels.
    large = next(each for each in found.candidates if each.levels == (1,))

    def fastest(early_routed: bool) -> float:
        return min(
            each.reported.latency.mean
            for each in found.candidates
            if len(each.levels) == 2
            and (each.early is not None) == early_routed
            and each.selection.score >= large.selection.score - 0.01
        )

    assert fastest(True) < fastest(False)
    plain = search(data, world.facts(data, tokenizer), world.rerun, metric="accuracy")
    assert plain.routers == ()
    assert all(each.early is None for each in plain.candidates)
    assert singles(plain) == singles(found)


def singles(result: SearchResult) -> list[Candidate]:
    return [each for each in result.candidates if len(each.levels) == 1]


class Blind(Toy):
    """A first level that sees nothing in texts with the word `w1`, half of all."""

    def data(self, count: int, **named: Any) -> LabelledData:
        data = super().data(count, **named)
        texts = tuple((f"w1 {text[0]}",) if row % 2 else text for row, text in enumerate(data.texts))
        return LabelledData(texts, data.truth, data.part)

    def outputs(self, level: int, texts: Any) -> LevelOutputs:
        found = super().outputs(level, texts)
        if level:
            return found
        seen = np.array([not text[0].startswith("w1 ") for text in texts])
        return LevelOutputs(
            found.logits * (0.02 + 3 * seen[:, None]).astype(np.float32), found.importance, found.latency_ms
        )
