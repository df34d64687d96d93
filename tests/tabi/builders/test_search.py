from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tabi.builders.toy import WORDS, Toy, tokenizer_of
from tidal.errors import InvalidArgument
from tidal.tabi.manifest import Calibration, Expected, Latency, Target
from tidal.tabi.pruning import kept_words, prune_text
from tidal.tabi.selection import select
from tidal.text.words import EncodedWords, WordTokenizer
from tidal_builders.tabi import search as searching
from tidal_builders.tabi.combinations import CombinationRunner, ascending
from tidal_builders.tabi.data import CALIBRATION, REPORT, SELECTION, CollectedLevel, LabelledData, LevelOutputs
from tidal_builders.tabi.evaluate import LevelChain
from tidal_builders.tabi.search import (
    CUTOFFS,
    MAX_PRUNING_LOSS,
    SCALES,
    SLOPES,
    SearchResult,
    dispatchers,
    fast_enough,
    search,
)
from tidal_builders.tabi.weights import Tuner, by_accuracy

TOY = {"noise": (0.4, 0.1), "base_ms": (1.0, 5.0), "gain": (6.0, 15.0)}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> WordTokenizer:
    return tokenizer_of(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def found(tokenizer: WordTokenizer) -> tuple[Toy, LabelledData, SearchResult]:
    toy = Toy(**TOY)
    data = toy.data(1200)
    return toy, data, search(data, toy.facts(data, tokenizer), toy.rerun, metric="accuracy")


def test_a_cascade_is_as_good_as_the_large_level_and_faster(found: tuple[Toy, LabelledData, SearchResult]) -> None:
    _, _, result = found
    candidates = result.candidates
    large = next(each for each in candidates if each.levels == (1,))
    chosen = candidates[select(candidates, Target(accuracy=large.selection.score - 0.005))]
    assert len(chosen.levels) == 2
    assert chosen.selection.latency.mean < 0.8 * large.selection.latency.mean
    assert chosen.reported.score > large.reported.score - 0.03
    assert chosen.reported.latency.mean < 0.85 * large.reported.latency.mean
    assert {each.weighting for each in candidates if len(each.levels) == 2} == {"accuracy", "tuned"}
    assert [each.levels for each in candidates if len(each.levels) == 1] == [(0,), (1,)]
    assert list(candidates) == sorted(candidates, key=lambda each: each.selection.latency.mean)
    assert len({each.name for each in candidates}) == len(candidates)
    # The small level is surer than it should be.
    assert result.levels[0].calibrated.calibration.temperature > 1.2


def test_levels_report_what_they_do_alone(found: tuple[Toy, LabelledData, SearchResult]) -> None:
    toy, data, result = found
    report = data.part == REPORT
    for place, level in enumerate(result.levels):
        outputs = toy.outputs(level.index, data.texts)
        assert level.score == pytest.approx((outputs.logits.argmax(axis=1) == data.truth)[report].mean())
        assert level.latency.mean == pytest.approx(outputs.latency_ms[report].mean())
        single = next(each for each in result.candidates if each.levels == (place,))
        assert (single.cutoff, single.slope, single.pruning, single.weights) == (None, None, None, ((1.0,),))


def test_nothing_that_is_chosen_has_seen_the_report_part(
    tokenizer: WordTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report part becomes another world: other labels, logits, latencies, importance, and outputs when pruned."""
    for name in ("SLOPES", "SCALES"):
        monkeypatch.setattr(searching, name, getattr(searching, name)[::2])
    toy = Toy(noise=(1.5, 0.8, 0.2), base_ms=(1.0, 2.5, 5.0))
    data = toy.data(300)
    report = data.part == REPORT
    honest = search(data, toy.facts(data, tokenizer), toy.rerun, metric="accuracy")

    generator = np.random.default_rng(0)
    strange = [" ".join(f"x{number}" for number in row) for row in generator.integers(0, len(WORDS), (len(report), 9))]
    texts = tuple((words,) if other else text for words, text, other in zip(strange, data.texts, report, strict=True))
    changed = LabelledData(texts, np.where(report, generator.integers(0, 3, len(report)), data.truth), data.part)

    def spoilt(outputs: LevelOutputs, rows: np.ndarray) -> LevelOutputs:
        importance = tuple(
            each[::-1] if row else each for row, each in zip(rows, outputs.importance or (), strict=True)
        )
        logits = np.where(rows[:, None], -3 * outputs.logits, outputs.logits)
        return LevelOutputs(logits, importance, np.where(rows, 100 * outputs.latency_ms, outputs.latency_ms))

    levels = [
        CollectedLevel(each.name, spoilt(each.outputs, report), each.tokenizer)
        for each in toy.facts(changed, tokenizer)
    ]

    def rerun(level: int, queries: tuple[tuple[str, ...], ...], /) -> LevelOutputs:
        return spoilt(toy.outputs(level, queries), np.array([query[0].startswith("x") for query in queries]))

    other = search(changed, levels, rerun, metric="accuracy")
    assert [each.index for each in other.levels] == [each.index for each in honest.levels]
    for one, two in zip(honest.levels, other.levels, strict=True):
        assert one.calibrated.calibration.temperature == two.calibrated.calibration.temperature
        assert one.score != two.score
    assert (other.tried, other.too_slow) == (honest.tried, honest.too_slow)
    blind = {"reported": honest.candidates[0].reported}
    assert [each.model_copy(update=blind) for each in other.candidates] == [
        each.model_copy(update=blind) for each in honest.candidates
    ]
    assert all(a.reported != b.reported for a, b in zip(honest.candidates, other.candidates, strict=True))
    target = Target(accuracy=honest.candidates[-1].selection.score - 0.01)
    assert select(honest.candidates, target) == select(other.candidates, target)


def test_levels_ascend_by_score_and_among_equals_by_latency(tokenizer: WordTokenizer) -> None:
    toy = Toy(noise=(0.1, 1.0, 1.0, 2.5), base_ms=(4.0, 3.0, 2.0, 1.0))
    data = toy.data(300)
    levels = toy.facts(data, tokenizer)
    # The third is the second, only faster.
    levels[2] = CollectedLevel(
        "same", dataclasses.replace(levels[1].outputs, latency_ms=levels[2].outputs.latency_ms), tokenizer
    )
    assert ascending(data, levels, "accuracy") == [3, 2, 1, 0]
    # On the report part the first is the worst by far, which the order must not know.
    rows = data.part == REPORT
    levels[0] = CollectedLevel(
        "first",
        dataclasses.replace(levels[0].outputs, logits=np.where(rows[:, None], -9.0, 1) * levels[0].outputs.logits),
        tokenizer,
    )
    assert ascending(data, levels, "accuracy") == [3, 2, 1, 0]


def _chains(good: float, count: int = 400, seed: int = 0) -> tuple[LevelChain, LevelChain, float]:
    """A first level that is right as often as it says, and a last one with `good` of its answers right."""
    chains, scores = [], []
    for part in (0, 1):
        generator = np.random.default_rng([seed, part])
        sure = generator.uniform(0.5, 1, count)
        right = generator.random(count) < sure
        first = np.stack([np.log(sure), np.log(1 - sure)], axis=1).astype(np.float32)
        last = np.where((generator.random(count) < good)[:, None], [[3.0, 0.0]], [[0.0, 3.0]]).astype(np.float32)
        truth = np.where(right, 0, 1)
        last = np.where(truth[:, None] == 1, last[:, ::-1], last)
        outputs = [LevelOutputs(first, None, np.ones(count)), LevelOutputs(last, None, np.full(count, 4.0))]
        chain = LevelChain(
            outputs,
            [Calibration()] * 2,
            truth,
            words=np.zeros(count, np.int64),
            removed=np.zeros((1, count), np.int64),
            metric="accuracy",
        )
        chains.append(chain)
        scores.append((chain.alone(0) + chain.alone(1)) / 2)
    return chains[0], chains[1], scores[1]


@pytest.mark.parametrize("good", [0.6, 0.8, 0.97])
def test_cutoffs_go_down_until_the_score_is_below_the_mean_of_the_levels(good: float) -> None:
    calibration, selection, least = _chains(good)
    found = list(dispatchers((0, 1), None, calibration, selection, least))
    stopped = 0
    for slope in SLOPES:
        for weighting in ("accuracy", "tuned"):
            mine = [each for each in found if (each.slope, each.weighting) == (slope, weighting)]
            assert [each.cutoff for each in mine] == list(CUTOFFS[: len(mine)])
            assert all(each.selection.score >= least - 1e-9 for each in mine)
            if mine and len(mine) < len(CUTOFFS):
                stopped += 1
                # The next one, by itself, would have been too bad.
                next_cutoff = CUTOFFS[len(mine)]
                reach = calibration.reach(next_cutoff, slope)
                weights = by_accuracy(calibration, reach)
                if weighting == "tuned":
                    weights = Tuner(calibration).tune(reach, weights)
                assert selection.expected(selection.reach(next_cutoff, slope), weights).score < least
    assert stopped or good != 0.97
    assert CUTOFFS[:3] == (0.95, 0.9, 0.85)
    assert CUTOFFS[-1] == 0.05


def test_the_first_cutoff_that_is_too_bad_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    calibration, selection, _ = _chains(0.9)
    scores = {0.95: 0.8, 0.9: 0.7, 0.85: 0.5, 0.8: 0.69, 0.75: 0.9}
    asked = []
    figures = selection.expected(selection.reach(0.9, 5.0), ((1.0,), (0.5, 0.5)))

    def reach(cutoff: float, slope: float) -> float:
        asked.append(cutoff)
        return cutoff

    monkeypatch.setattr(selection, "reach", reach)
    monkeypatch.setattr(
        selection, "expected", lambda cutoff, weights: figures.model_copy(update={"score": scores[cutoff]})
    )
    found = list(dispatchers((0, 1), None, calibration, selection, 0.7))
    runs = len(SLOPES) * 2
    assert [each.cutoff for each in found] == [0.95, 0.9] * runs
    assert asked == [0.95, 0.9, 0.85] * runs


def test_no_cutoff_is_tried_where_even_the_largest_is_too_bad() -> None:
    calibration, selection, _ = _chains(0.8)
    assert list(dispatchers((0, 1), None, calibration, selection, 1.01)) == []


def test_pruning_goes_on_until_the_last_level_loses_2_points(tokenizer: WordTokenizer) -> None:
    toy = Toy(**TOY, seed=3)
    data = toy.data(600)
    levels = toy.facts(data, tokenizer)
    result = search(data, levels, toy.rerun, metric="accuracy")
    known = np.flatnonzero(data.part != REPORT)
    losses = []
    for scale in SCALES:
        texts = [_pruned(tokenizer, data.texts[row], levels[0].outputs.importance[row], scale) for row in known]
        right = toy.outputs(1, texts).logits.argmax(axis=1) == data.truth[known]
        losses.append((levels[1].outputs.logits[known].argmax(axis=1) == data.truth[known]).mean() - right.mean())
    assert SCALES[:3] == (0.5, 0.6, 0.7)
    # The first scale that loses too much is run, and none beyond it.
    tried = next(number for number, loss in enumerate(losses) if loss > MAX_PRUNING_LOSS) + 1
    assert 1 < tried < len(SCALES)
    assert sum(len(texts) == len(known) for _, texts in toy.calls) == tried
    scales = {each.pruning for each in result.candidates}
    assert scales <= {None, *SCALES[: tried - 1]}
    assert scales - {None}


@pytest.mark.parametrize(("wrong", "prunes"), [(5, True), (6, False)])
def test_exactly_the_loss_allowed_is_not_too_much(
    tokenizer: WordTokenizer, monkeypatch: pytest.MonkeyPatch, wrong: int, prunes: bool
) -> None:
    toy = Toy(**TOY)
    data = toy.data(300)
    levels = toy.facts(data, tokenizer)
    known = np.flatnonzero(data.part != REPORT)
    assert len(known) != len(data.part) - len(known)
    logits = levels[1].outputs.logits[known].copy()
    right = np.flatnonzero(logits.argmax(axis=1) == data.truth[known])
    logits[right[:wrong]] *= -1
    monkeypatch.setattr(searching, "MAX_PRUNING_LOSS", 5 / len(known))

    def rerun(level: int, texts: tuple[tuple[str, ...], ...], /) -> LevelOutputs:
        if len(texts) != len(known):
            return toy.outputs(level, texts)
        return LevelOutputs(logits, None, np.full(len(texts), 0.1))

    result = search(data, levels, rerun, metric="accuracy")
    assert any(each.pruning is not None for each in result.candidates) == prunes


def _pruned(tokenizer: WordTokenizer, text: tuple[str, ...], importance: np.ndarray, scale: float) -> tuple[str, ...]:
    (encoded,) = tokenizer.encode([text[0].encode()], None if len(text) == 1 else [text[1].encode()])
    assert isinstance(encoded, EncodedWords)
    return prune_text(encoded.texts, encoded.spans, kept_words(encoded, importance, scale))


@pytest.mark.parametrize("pairs", [False, True])
def test_a_chain_of_three_prunes_step_by_step(tokenizer: WordTokenizer, pairs: bool) -> None:
    toy = Toy(noise=(1.0, 0.5, 0.1), base_ms=(1.0, 2.0, 4.0))
    data = toy.data(60, pairs=pairs)
    levels = toy.facts(data, tokenizer)
    rows = np.arange(10, 40)
    run = CombinationRunner(data.texts, levels, toy.rerun).run((0, 1, 2), 0.8, rows)
    assert [level for level, _ in toy.calls] == [1, 2]
    for place, row in enumerate(rows):
        once = _pruned(tokenizer, data.texts[row], levels[0].outputs.importance[row], 0.8)
        assert toy.calls[0][1][place] == once
        read = toy.outputs(1, [once])
        twice = _pruned(tokenizer, once, read.importance[0], 0.8)
        assert toy.calls[1][1][place] == twice
        assert len(twice) == 1 + pairs
        assert all(twice)
        had, left = _words(data.texts[row]), [_words(once), _words(twice)]
        assert run.words[place] == had
        assert run.removed[:, place].tolist() == [had - left[0], had - left[1]]
        assert np.array_equal(run.outputs[0].logits[place], levels[0].outputs.logits[row])
        assert np.array_equal(run.outputs[1].logits[place], read.logits[0])
        assert run.outputs[2].latency_ms[place] == toy.outputs(2, [twice]).latency_ms[0]
    assert run.removed[0].sum() > 0
    assert (run.removed[1] > run.removed[0]).any()


def _words(text: tuple[str, ...]) -> int:
    return sum(len(part.split()) for part in text)


@given(st.integers(0, 40))
@settings(deadline=None, max_examples=10)
def test_a_scale_of_nothing_prunes_nothing(tokenizer: WordTokenizer, seed: int) -> None:
    toy = Toy(noise=(1.0, 0.1), base_ms=(1.0, 2.0), seed=seed)
    data = toy.data(20)
    passes = CombinationRunner(data.texts, toy.facts(data, tokenizer), toy.rerun)
    whole, least = (passes.run((0, 1), scale, np.arange(20)) for scale in (None, 1e-9))
    assert toy.calls[0][1] == data.texts
    assert least.removed.sum() == 0
    assert np.array_equal(whole.outputs[1].logits, least.outputs[1].logits)


def test_what_is_kept_is_within_the_rule_on_p75(tokenizer: WordTokenizer) -> None:
    # The first level is nearly as slow as the last: a query that goes on takes almost twice as long.
    toy = Toy(noise=(1.5, 0.2), base_ms=(4.5, 5.0), attention=(False, True))
    data = toy.data(800)
    result = search(data, toy.facts(data, tokenizer), toy.rerun, metric="accuracy")
    singles = {each.levels[0]: each.selection for each in result.candidates if len(each.levels) == 1}
    cascades = [each for each in result.candidates if len(each.levels) == 2]
    assert 0 < result.too_slow < result.tried
    assert cascades
    bound = 1.5 * max(each.latency.p75 for each in singles.values())
    assert all(each.selection.latency.p75 <= bound for each in cascades)
    assert toy.calls == []
    assert {each.pruning for each in cascades} == {None}


def test_the_slowest_level_is_that_of_the_candidate() -> None:
    def took(p75: float) -> Expected:
        latency = Latency(mean=p75, p25=p75, p50=p75, p75=p75, p99=p75)
        return Expected(score=0.5, latency=latency, returned=(1.0,), pruned=0.0)

    assert fast_enough(took(15.0), [took(1.0), took(10.0)])
    assert not fast_enough(took(15.01), [took(1.0), took(10.0)])
    assert not fast_enough(took(15.0), [took(9.0), took(9.9)])


@pytest.mark.parametrize("metric", ["pearson", "spearman", "r2"])
def test_regressions_are_searched_by_their_metric(tokenizer: WordTokenizer, metric: str) -> None:
    toy = Toy(noise=(1.2, 0.1), base_ms=(1.0, 5.0), classes=1)
    data = toy.data(400)
    result = search(data, toy.facts(data, tokenizer), toy.rerun, metric=metric, tolerance=1.0)  # type: ignore[arg-type]
    large = next(each for each in result.candidates if each.levels == (1,))
    small = next(each for each in result.candidates if each.levels == (0,))
    cascades = [each for each in result.candidates if len(each.levels) == 2]
    assert small.selection.score < large.selection.score <= 1
    least = (small.selection.score + large.selection.score) / 2
    assert cascades
    assert all(each.selection.score >= least - 1e-9 for each in cascades)
    assert all(level.calibrated.calibration.regression is not None for level in result.levels)


def test_three_levels_give_all_combinations(tokenizer: WordTokenizer) -> None:
    toy = Toy(noise=(1.5, 0.8, 0.2), base_ms=(1.0, 2.5, 8.0), gain=(3.0, 2.0, 1.0))
    data = toy.data(300)
    # Given in another order than that of their scores.
    shuffled = [2, 0, 1]
    facts = toy.facts(data, tokenizer)
    calls = []

    def rerun(level: int, texts: tuple[tuple[str, ...], ...], /) -> LevelOutputs:
        calls.append(level)
        return toy.outputs(shuffled[level], texts)

    result = search(data, [facts[index] for index in shuffled], rerun, metric="accuracy")
    assert [each.index for each in result.levels] == [1, 2, 0]
    assert {each.levels for each in result.candidates} == {(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)}
    assert set(calls) == {0, 2}
    assert all(each.name.startswith("level0+level1+level2 ") for each in result.candidates if len(each.levels) == 3)
    straight = search(data, facts, toy.rerun, metric="accuracy")
    assert straight.candidates == result.candidates


def test_what_cannot_be_searched_is_an_error(tokenizer: WordTokenizer) -> None:
    toy = Toy(**TOY)
    data = toy.data(40)
    levels = toy.facts(data, tokenizer)
    for part, name in ((CALIBRATION, "calibration"), (SELECTION, "selection"), (REPORT, "report")):
        without = LabelledData(
            data.texts, data.truth, np.where(data.part == part, (part + 1) % 3, data.part).astype(np.int8)
        )
        with pytest.raises(InvalidArgument, match=f"the {name} part of the data has 0 queries"):
            search(without, levels, toy.rerun, metric="accuracy")
    with pytest.raises(InvalidArgument, match="a regression needs one"):
        search(data, levels, toy.rerun, metric="r2")
    with pytest.raises(InvalidArgument, match="for accuracy; a regression needs one"):
        search(data, levels, toy.rerun, metric="accuracy", tolerance=0.5)


def test_no_kept_candidate_is_beaten_in_everything(found: tuple[Toy, LabelledData, SearchResult]) -> None:
    _, _, result = found
    cascades = [each for each in result.candidates if len(each.levels) > 1]
    for one in cascades:
        beaten = [
            other
            for other in cascades
            if other.weighting == one.weighting
            and other.selection.score >= one.selection.score
            and other.selection.latency.mean < one.selection.latency.mean
            and other.selection.returned[0] > one.selection.returned[0]
        ]
        assert not beaten
    assert len(result.candidates) < result.tried / 4


def test_weights_come_from_one_part_and_figures_from_two_others(
    found: tuple[Toy, LabelledData, SearchResult], tokenizer: WordTokenizer
) -> None:
    toy, data, result = found
    passes = CombinationRunner(data.texts, toy.facts(data, tokenizer), toy.rerun)
    calibrations = [each.calibrated.calibration for each in result.levels]
    for each in [each for each in result.candidates if len(each.levels) == 2][::6]:
        chains = []
        for part in (CALIBRATION, SELECTION, REPORT):
            rows = np.flatnonzero(data.part == part)
            run = passes.run((0, 1), each.pruning, rows)
            chains.append(
                LevelChain(
                    run.outputs,
                    calibrations,
                    data.truth[rows],
                    words=run.words,
                    removed=run.removed,
                    metric="accuracy",
                )
            )
        reaches = [chain.reach(each.cutoff, each.slope) for chain in chains]
        weights = by_accuracy(chains[0], reaches[0])
        if each.weighting == "tuned":
            weights = Tuner(chains[0]).tune(reaches[0], weights)
        assert each.weights == weights
        assert each.selection == chains[1].expected(reaches[1], weights)
        assert each.reported == chains[2].expected(reaches[2], weights)


def test_progress_ends_at_the_whole(tokenizer: WordTokenizer) -> None:
    toy = Toy(**TOY)
    data, reported = toy.data(200), []
    search(data, toy.facts(data, tokenizer), toy.rerun, metric="accuracy", progress=reported.append)
    assert reported == sorted(reported)
    assert reported[-1] == pytest.approx(1)


def test_a_level_by_itself_is_a_cascade_too(tokenizer: WordTokenizer) -> None:
    toy = Toy(noise=(0.5,), base_ms=(1.0,))
    data = toy.data(60)
    result = search(data, toy.facts(data, tokenizer), toy.rerun, metric="accuracy")
    assert [each.levels for each in result.candidates] == [(0,)]
    assert (result.tried, result.too_slow) == (0, 0)
