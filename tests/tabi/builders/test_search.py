"""The search for candidates of a cascade: their figures, the parts of the data, and the limit on latency."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tabi.builders.toy import OVERCONFIDENT, WORDS, Toy
from tidal.errors import InvalidArgument
from tidal.tabi.manifest import Expected, Latency, Target
from tidal.tabi.selection import select
from tidal.text.words import WordTokenizer
from tidal_builders.tabi import search as searching
from tidal_builders.tabi.combinations import CombinationRunner
from tidal_builders.tabi.data import CALIBRATION, REPORT, SELECTION, CollectedLevel, LabelledData, LevelOutputs
from tidal_builders.tabi.evaluate import LevelChain
from tidal_builders.tabi.search import (
    SearchResult,
    fast_enough,
    search,
)
from tidal_builders.tabi.weights import Tuner, by_accuracy

pytestmark = pytest.mark.slow


def try_few(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """Let a search try each `every`-th cut-off, slope and scale: the time that it takes is in their product."""
    for name in ("CUTOFFS", "SLOPES", "SCALES"):
        monkeypatch.setattr(searching, name, getattr(searching, name)[::every])


@pytest.fixture(scope="module")
def found(tokenizer: WordTokenizer) -> tuple[Toy, LabelledData, SearchResult]:
    toy = Toy(**OVERCONFIDENT)
    data = toy.data(800)
    return toy, data, search(data, toy.facts(data, tokenizer), toy.rerun, metric="accuracy")


def test_a_cascade_is_as_good_as_the_large_level_and_faster(found: tuple[Toy, LabelledData, SearchResult]) -> None:
    _, _, result = found
    candidates = result.candidates
    large = next(each for each in candidates if each.levels == (1,))
    chosen = candidates[select(candidates, Target(accuracy=large.selection.score - 0.02))]
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


def test_levels_report_their_own_figures(found: tuple[Toy, LabelledData, SearchResult]) -> None:
    toy, data, result = found
    report = data.part == REPORT
    for place, level in enumerate(result.levels):
        outputs = toy.outputs(level.index, data.texts)
        assert level.score == pytest.approx((outputs.logits.argmax(axis=1) == data.truth)[report].mean())
        assert level.latency.mean == pytest.approx(outputs.latency_ms[report].mean())
        single = next(each for each in result.candidates if each.levels == (place,))
        assert (single.cutoff, single.slope, single.pruning, single.weights) == (None, None, None, ((1.0,),))


def test_no_choice_depends_on_the_report_part(tokenizer: WordTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report part is replaced: other labels, logits, latencies, importance, and outputs of pruned texts."""
    try_few(monkeypatch, 4)
    toy = Toy(noise=(1.5, 0.8, 0.2), base_ms=(1.0, 2.5, 5.0))
    data = toy.data(300)
    report = data.part == REPORT
    original = search(data, toy.facts(data, tokenizer), toy.rerun, metric="accuracy")

    generator = np.random.default_rng(0)
    replacements = [
        " ".join(f"x{number}" for number in row) for row in generator.integers(0, len(WORDS), (len(report), 9))
    ]
    texts = tuple(
        (words,) if other else text for words, text, other in zip(replacements, data.texts, report, strict=True)
    )
    changed = LabelledData(texts, np.where(report, generator.integers(0, 3, len(report)), data.truth), data.part)

    def distorted(outputs: LevelOutputs, rows: np.ndarray) -> LevelOutputs:
        importance = tuple(
            each[::-1] if row else each for row, each in zip(rows, outputs.importance or (), strict=True)
        )
        logits = np.where(rows[:, None], -3 * outputs.logits, outputs.logits)
        return LevelOutputs(logits, importance, np.where(rows, 100 * outputs.latency_ms, outputs.latency_ms))

    levels = [
        CollectedLevel(each.name, distorted(each.outputs, report), each.tokenizer)
        for each in toy.facts(changed, tokenizer)
    ]

    def rerun(level: int, queries: tuple[tuple[str, ...], ...], /) -> LevelOutputs:
        return distorted(toy.outputs(level, queries), np.array([query[0].startswith("x") for query in queries]))

    other = search(changed, levels, rerun, metric="accuracy")
    assert [each.index for each in other.levels] == [each.index for each in original.levels]
    for one, two in zip(original.levels, other.levels, strict=True):
        assert one.calibrated.calibration.temperature == two.calibrated.calibration.temperature
        assert one.score != two.score
    assert (other.tried, other.too_slow) == (original.tried, original.too_slow)
    same_report = {"reported": original.candidates[0].reported}
    assert [each.model_copy(update=same_report) for each in other.candidates] == [
        each.model_copy(update=same_report) for each in original.candidates
    ]
    assert all(a.reported != b.reported for a, b in zip(original.candidates, other.candidates, strict=True))
    target = Target(accuracy=original.candidates[-1].selection.score - 0.01)
    assert select(original.candidates, target) == select(other.candidates, target)


def test_candidates_are_within_the_limit_on_p75(tokenizer: WordTokenizer) -> None:
    # The first level is nearly as slow as the last: an escalated query takes almost twice as long.
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


def test_the_latency_limit_follows_the_slowest_level_of_the_candidate() -> None:
    def took(p75: float) -> Expected:
        latency = Latency(mean=p75, p25=p75, p50=p75, p75=p75, p99=p75)
        return Expected(score=0.5, latency=latency, returned=(1.0,), pruned=0.0)

    assert fast_enough(took(15.0), [took(1.0), took(10.0)])
    assert not fast_enough(took(15.01), [took(1.0), took(10.0)])
    assert not fast_enough(took(15.0), [took(9.0), took(9.9)])


@pytest.mark.parametrize("metric", ["pearson", "spearman", "r2"])
def test_regressions_are_searched_by_their_metric(
    tokenizer: WordTokenizer, monkeypatch: pytest.MonkeyPatch, metric: str
) -> None:
    try_few(monkeypatch, 4)
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


def test_three_levels_give_all_combinations(tokenizer: WordTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    try_few(monkeypatch, 4)
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


def test_invalid_searches_are_refused(tokenizer: WordTokenizer) -> None:
    toy = Toy(**OVERCONFIDENT)
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


def test_candidates_are_compared_with_the_large_level_from_slow_to_fast(
    found: tuple[Toy, LabelledData, SearchResult],
) -> None:
    _, data, result = found
    large = next(each for each in result.candidates if each.levels == (1,))
    compared = sorted((each for each in result.candidates if each.loss is not None), key=lambda each: each.loss.place)
    assert [each.loss.place for each in compared] == list(range(len(compared)))
    latencies = [large.selection.latency.mean, *(each.selection.latency.mean for each in compared)]
    assert latencies == sorted(latencies, reverse=True)
    for each in compared:
        assert each.loss.measured == pytest.approx(large.selection.score - each.selection.score, abs=1e-9)
        assert each.loss.measured < each.loss.upper <= 1
        assert each.loss.queries == (data.part == SELECTION).sum()
    assert len(result.candidates) < result.tried / 4


def test_weights_come_from_one_part_and_figures_from_two_others(
    found: tuple[Toy, LabelledData, SearchResult], tokenizer: WordTokenizer
) -> None:
    toy, data, result = found
    passes = CombinationRunner(data.texts, toy.facts(data, tokenizer), toy.rerun)
    calibrations = [each.calibrated.calibration for each in result.levels]
    for each in [each for each in result.candidates if len(each.levels) == 2][::15]:
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


def test_progress_ascends_to_1(tokenizer: WordTokenizer) -> None:
    toy = Toy(**OVERCONFIDENT)
    data, reported = toy.data(200), []
    search(data, toy.facts(data, tokenizer), toy.rerun, metric="accuracy", progress=reported.append)
    assert reported == sorted(reported)
    assert reported[-1] == pytest.approx(1)


def test_a_single_level_can_be_searched(tokenizer: WordTokenizer) -> None:
    toy = Toy(noise=(0.5,), base_ms=(1.0,))
    data = toy.data(60)
    result = search(data, toy.facts(data, tokenizer), toy.rerun, metric="accuracy")
    assert [each.levels for each in result.candidates] == [(0,)]
    assert (result.tried, result.too_slow) == (0, 0)
