"""The parts of Tabi's comparison that decide what is compared with what, and what figures say."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.report import Report
from benchmarks.tabi import figures, importance, outcome, variants
from benchmarks.tabi.artefacts import write_labelled
from benchmarks.tabi.claims import add_claims
from benchmarks.tabi.crowd import OpenLoopResult
from benchmarks.tabi.equality import RouteEquality
from benchmarks.tabi.outcome import TaskOutcome
from benchmarks.tabi.packing import packing
from benchmarks.tabi.rounds import FULL, TaskRun
from benchmarks.tabi.serial import SerialResult
from benchmarks.tabi.statistics import paired_difference, resampled, right_by_query
from benchmarks.tabi.sweeps import Sweeps, equal_share, linear_probability
from benchmarks.tabi.tasks import HELD_OUT, TASKS, DataTask, TaskQueries, load
from benchmarks.tabi.variants import LARGE, MIDDLE, SMALL, TABI, choose, fronts
from benchmarks.tabi.voting import find_ensemble
from tests.tabi.builders.toy import Toy, tokenizer_of
from tidal.manifest import TokenizerInfo
from tidal.tabi.equations import confidence, reroute_probability
from tidal.tabi.manifest import Calibration, Candidate, Expected, Latency, Level, TabiManifest, Target
from tidal.tabi.pruning import kept_words
from tidal.text.words import EncodedWords, WordTokenizer

TRUTH = ("a", "b", "a", "b")


def expected(score: float, mean_ms: float, returned: tuple[float, ...]) -> Expected:
    latency = Latency(mean=mean_ms, p25=mean_ms, p50=mean_ms, p75=mean_ms, p99=mean_ms)
    return Expected(score=score, latency=latency, returned=returned, pruned=0.1)


def candidate(levels: tuple[int, ...], score: float, mean_ms: float, pruning: float | None = 0.7) -> Candidate:
    several = len(levels) > 1
    figures_of = expected(score, mean_ms, (0.6, *(0.4 / (len(levels) - 1),) * (len(levels) - 1)) if several else (1.0,))
    return Candidate(
        name="+".join(map(str, levels)),
        levels=levels,
        cutoff=0.9 if several else None,
        slope=10.0 if several else None,
        pruning=pruning if several else None,
        weights=tuple((1 / count,) * count for count in range(1, len(levels) + 1)),
        weighting="accuracy" if several else None,
        selection=figures_of,
        reported=figures_of,
    )


def manifest(*candidates: Candidate) -> TabiManifest:
    singles = [candidate((0,), 0.80, 2.0), candidate((1,), 0.85, 4.0), candidate((2,), 0.90, 6.0)]
    levels = [
        Level(
            name=name,
            model=f"task_{name}",
            version=1,
            fingerprint="x",
            tokenizer=TokenizerInfo(file="tokenizer/tokenizer.json", max_length=64, pad_token_id=0, type_ids=True),
            max_length=64,
            attention=True,
            calibration=Calibration(temperature=1.7),
            score=single.selection.score,
            latency=single.selection.latency,
        )
        for name, single in zip((SMALL, MIDDLE, LARGE), singles, strict=True)
    ]
    return TabiManifest(
        kind="tabi",
        name="task",
        created="2026-01-01T00:00:00Z",
        spec="task.yaml",
        fingerprint="x",
        libraries={},
        files=(),
        task="classification",
        pairs=False,
        metric="accuracy",
        labels=("a", "b"),
        data="x",
        rows={"calibration": 1, "selection": 1, "report": 1},
        levels=tuple(levels),
        candidates=(*singles, *candidates),
        target=Target(latency_ms=60_000),
        chosen=0,
    )


def write_task(folder: Path, train: list[tuple[str, ...]], dev: list[tuple[str, ...]]) -> None:
    folder.mkdir()
    (folder / "labels.json").write_text(json.dumps({"labels": ["no", "yes"]}))
    header = ("text", "label") if len(train[0]) == 2 else ("text_a", "text_b", "label")
    for name, rows in (("train", train), ("dev", dev)):
        with gzip.open(folder / f"{name}.tsv.gz", "wt") as file:
            file.writelines("\t".join(row) + "\n" for row in (header, *rows))


def test_a_split_shares_no_query_and_keeps_quotes_and_pairs(tmp_path):
    train = [(f'say "{number}', "who", str(number % 2)) for number in range(400)]
    train += train[:40]  # equal queries have to fall on one side
    write_task(tmp_path / "pairs", train, train[:10])
    split = load(tmp_path, DataTask("pairs", 1))
    parts = [set(part.texts) for part in (split.train, split.held_out, split.dev)]
    assert not (parts[0] & parts[1])
    assert not (parts[0] & parts[2])
    assert not (parts[1] & parts[2])
    assert ('say "399', "who") in parts[0] | parts[1]
    assert split.dev.truth[:2] == ("no", "yes")
    assert len(split.held_out) / 430 == pytest.approx(HELD_OUT, abs=0.08)


def test_labelled_queries_are_written_as_the_builder_reads_them(tmp_path):
    write_task(tmp_path / "single", [("one", "1"), ("two", "0")], [("x", "0")])
    split = load(tmp_path, DataTask("single", 1))
    write_labelled(split.dev, tmp_path / "out.jsonl")
    assert json.loads((tmp_path / "out.jsonl").read_text()) == {"text": "x", "label": "no"}


def test_the_tasks_are_those_that_are_asked_for_and_two_more():
    assert {"sst2", "clinc150"} <= {task.name for task in TASKS}
    assert len(TASKS) == 4
    assert FULL.equality * len(TASKS) >= 2000


def test_every_way_to_choose_takes_its_fastest_candidate_that_meets_the_target():
    found = manifest(
        candidate((0, 2), 0.896, 3.5), candidate((0, 2), 0.905, 4.5), candidate((0, 1), 0.87, 2.5),
        candidate((0, 1, 2), 0.897, 4.0),
    )  # fmt: skip
    choice = choose(found)
    assert choice.target == pytest.approx(0.895)
    assert choice.single.levels == (2,)
    assert (choice.tabi.selection.score, choice.exact.selection.score) == (0.896, 0.905)
    assert choice.two_levels == choice.tabi
    assert choice.three_levels is not None
    assert choice.three_levels.selection.latency.mean == 4.0


def test_three_levels_are_made_where_the_builder_kept_none():
    choice = choose(manifest(candidate((0, 2), 0.896, 3.5)))
    three = choice.three_levels
    assert three is not None
    assert three.levels == (0, 1, 2)
    assert three.weights[-1] == pytest.approx((0.80 / 2.55, 0.85 / 2.55, 0.90 / 2.55))
    Candidate.model_validate(three.model_dump())


def test_without_a_cascade_that_meets_the_target_there_are_no_parts_to_take_away():
    found = manifest(candidate((0, 2), 0.87, 3.0))
    choice = choose(found)
    assert choice.two_levels is None
    assert choice.tabi.levels == (2,)
    assert set(fronts(found, choice)) == {TABI}


def test_variants_differ_from_the_cascade_in_one_part_each():
    found = manifest(candidate((0, 2), 0.896, 3.5))
    choice = choose(found)
    made = fronts(found, choice)
    assert all(len(each.candidates) == 1 and each.chosen == 0 for each in made.values())
    for each in made.values():
        TabiManifest.model_validate_json(each.model_dump_json())
    whole = made[TABI].candidates[0]
    assert made[variants.NO_PRUNING].candidates[0] == whole.model_copy(update={"pruning": None})
    assert made[variants.NO_ENSEMBLE].candidates[0].weights == ((1.0,), (0.0, 1.0))
    assert [level.calibration.temperature for level in made[variants.UNCALIBRATED].levels] == [1.0] * 3
    assert {level.model for level in made[variants.NO_ARLO].levels} == {
        "task_small_padded",
        "task_middle_padded",
        "task_large_padded",
    }
    assert variants.NO_PRUNING not in fronts(found, choose(manifest(candidate((0, 2), 0.896, 3.5, pruning=None))))


@pytest.mark.parametrize("cutoff", [0.6, 0.95])
def test_hard_cutoff_steps_at_c(cutoff):
    hard = variants.hard_cutoff(candidate((0, 2), 0.9, 3.0).model_copy(update={"cutoff": cutoff}))
    assert hard.cutoff is not None
    assert hard.slope is not None
    sure = np.array([cutoff - 0.02, cutoff + 0.02])
    assert reroute_probability(sure, hard.cutoff, hard.slope) == pytest.approx([1.0, 0.0], abs=1e-6)


def test_break_even_is_the_highest_target_at_which_a_single_model_wins():
    # At 0.84 the middle model is faster than the cascade, above 0.85 it is not accurate enough.
    even = variants.break_even(manifest(candidate((0, 2), 0.896, 4.5)))
    assert even is not None
    assert (even[0], even[1].levels) == (0.85, (1,))
    assert variants.break_even(manifest(candidate((0, 2), 0.91, 1.0))) is None


def test_linear_probability_falls_from_the_cutoff_to_certainty():
    sure = np.array([0.5, 0.9, 0.95, 1.0])
    assert linear_probability(sure, 0.9) == pytest.approx([1.0, 1.0, 0.5, 0.0])


def test_equal_share_finds_the_cutoff_of_a_share():
    sure = np.linspace(0, 1, 1001)
    cutoff = equal_share(lambda c: (sure <= c).astype(float), 0.3)
    assert cutoff == pytest.approx(0.3, abs=2e-3)


def test_vote_weighs_a_model_by_how_right_it_is_at_what_it_says():
    # One is right at "a" and wrong at "b"; two the other way round.
    truth = ["a", "a", "b", "b", "c"]
    one = ["a", "a", "a", "c", "b"]
    two = ["b", "b", "b", "b", "c"]
    large = ["a", "a", "b", "b", "b"]
    found = find_ensemble({SMALL: one, MIDDLE: two, LARGE: large}, truth, LARGE)
    assert found is not None
    assert found.members == (SMALL, MIDDLE)
    assert found.vote({SMALL: "b", MIDDLE: "c"}) == "c"  # never right against always right
    assert found.vote({SMALL: "a", MIDDLE: "b"}) == "a"  # 2/3 against 1/2
    assert found.accuracy == pytest.approx(0.8)
    assert found.equal


def test_an_ensemble_that_is_less_accurate_says_so():
    truth = ["a", "b"] * 10
    found = find_ensemble({SMALL: ["a"] * 20, MIDDLE: ["a"] * 20, LARGE: truth}, truth, LARGE)
    assert found is not None
    assert not found.equal
    assert find_ensemble({SMALL: truth, LARGE: truth}, truth, LARGE) is None


def test_packing_factor_ends_at_the_first_slowdown():
    assert packing({1: 1.0, 2: 1.05, 3: 1.3, 4: 1.05}).factor == 2
    assert packing({1: 1.0, 2: 1.9}).factor == 1


def test_paired_interval_covers_the_difference_and_narrows_with_pairs():
    ours = {row: float(row % 10 != 0) for row in range(1000)}
    theirs = {row: float(row % 20 != 0) for row in range(1000)}
    found = paired_difference(ours, theirs)
    assert found.value == pytest.approx(-0.05)
    assert found.low < -0.05 < found.high
    assert found.high - found.low < 0.04
    same = paired_difference(ours, ours)
    assert (same.value, same.low, same.high) == (0, 0, 0)
    assert resampled(np.array([1.0, 1.0])).low == 1


def test_a_query_counts_once_however_often_it_was_sent():
    assert right_by_query([([1, 2], [True, False]), ([1], [False])]) == {1: 0.5, 2: 0.0}


def a_run() -> TaskRun:
    """Two rounds: the small model is wrong at query 3, the large at none; the cascade returns 0, 1 and 2 early."""

    def cell(ms: list[float], labels: str, levels: list[int]) -> SerialResult:
        return SerialResult([0, 1, 2, 3], ms, list(labels), levels, 0.9, 0.01)

    one = {
        SMALL: cell([1.0] * 4, "abaa", [0] * 4),
        MIDDLE: cell([2.0] * 4, "abab", [0] * 4),
        LARGE: cell([4.0] * 4, "abab", [0] * 4),
        TABI: cell([1.5, 1.5, 1.5, 5.5], "abab", [1, 1, 1, 3]),
    }
    crowd = {name: OpenLoopResult(10.0, ms, {}, 0.5, 0.0, "") for name, ms in ((LARGE, [8.0, 8.0]), (TABI, [4.0, 4.0]))}
    return TaskRun([one, one], [100.0, 100.0], [crowd, crowd])


def packings():
    return {SMALL: packing({1: 1.0, 2: 1.0}), MIDDLE: packing({1: 1.0}), LARGE: packing({1: 1.0, 2: 2.0})}


def test_figures_of_a_cascade():
    found = manifest(candidate((0, 2), 0.896, 3.5))
    front = fronts(found, choose(found))[TABI]
    made = figures.cascade_figures(a_run(), TABI, TRUTH, front, packings())
    assert made.mean_ms == pytest.approx(2.5)
    assert made.returned == 0.75
    assert made.accuracy == 1
    assert made.overhead_ms == pytest.approx(0.5)
    # The models' own times are 1 and 1/4 of 4: half the mean each, at 1/2 and 1/1.
    assert made.cost == pytest.approx(2.5 * (0.5 / 2 + 0.5))
    single = figures.single_figures(a_run(), SMALL, TRUTH, packings()[SMALL])
    assert (single.accuracy, single.cost) == (0.75, 0.5)
    assert single.against_large.value == -0.25


def test_dispatch_and_bounds_compare_the_two_models_on_the_same_queries():
    found = figures.dispatch(a_run(), TABI, SMALL, 1, TRUTH)
    assert (found.returned, found.returned_by_small, found.returned_by_large) == (0.75, 1, 1)
    assert (found.re_routed_by_cascade, found.re_routed_by_small) == (1, 0)
    bound = figures.bound(a_run(), TABI, SMALL, 1, TRUTH)
    assert (bound.small, bound.front, bound.returned, bound.ideal_returned) == (0.25, 0.125, 0.75, 0.75)
    assert bound.small + bound.front + bound.re_routed == pytest.approx(2.5 / 4)


def test_an_ensemble_is_charged_its_slowest_member_alone():
    ensemble = find_ensemble({SMALL: list("abaa"), MIDDLE: list("abab"), LARGE: list("abab")}, TRUTH, LARGE)
    assert ensemble is not None
    made = figures.ensemble_figures(a_run(), ensemble, TRUTH, packings())
    assert made.mean_ms == 2
    assert made.cost == pytest.approx(1 / 2 + 2)


def an_outcome(name: str) -> TaskOutcome:
    run = a_run()
    ensemble = find_ensemble({SMALL: list("abaa"), MIDDLE: list("abab"), LARGE: list("abab")}, TRUTH, LARGE)
    systems = {each: figures.single_figures(run, each, TRUTH, packings()[LARGE]) for each in run.serial[0]}
    return TaskOutcome(name, run, TRUTH, LARGE, systems, ensemble, RouteEquality(10, 10, 1e-7))


def test_claims_have_the_names_and_goals_that_were_asked_for():
    report = Report("tabi", True)
    add_claims(report, [an_outcome("sst2"), an_outcome("qnli")])
    claims = {claim.name: (claim.goal, round(claim.measured, 4)) for claim in report.claims}
    assert claims == {
        "mean_vs_large[sst2]": ("<= 0.75", 0.625),
        "mean_vs_large[qnli]": ("<= 0.75", 0.625),
        "accuracy_gap[pooled]": ("<= 0.01", 0.0),
        "p99_vs_large[poisson70]": ("<= 1.0", 0.5),
        "p99_vs_large[unloaded]": ("<= 1.25", round(float(np.percentile([1.5, 1.5, 1.5, 5.5], 99)) / 4, 4)),
        "mean_vs_cocktail[sst2]": ("<= 0.89", 1.25),
        "mean_vs_cocktail[qnli]": ("<= 0.89", 1.25),
        "route_equality": ("== 1.0", 1.0),
    }


def test_a_run_that_was_cut_short_is_read_back(tmp_path):
    a_run().save(tmp_path / "run.json")
    assert TaskRun.read(tmp_path / "run.json") == a_run()


class ToyLevel:
    """A level of a small world in place of an engine; keeps what it was asked."""

    def __init__(self, toy: Toy, place: int, tokenizer: WordTokenizer, asked: list[tuple[int, str]]) -> None:
        self._toy, self._place, self._tokenizer, self._asked = toy, place, tokenizer, asked
        self.vocabulary = b""

    def read(self, texts: tuple[str, ...]) -> EncodedWords:
        (found,) = self._tokenizer.encode([texts[0].encode()], None)
        assert isinstance(found, EncodedWords)
        return found

    def run(self, query: EncodedWords) -> tuple[np.ndarray, np.ndarray]:
        self._asked.append((self._place, query.texts[0]))
        found = self._toy.outputs(self._place, [query.texts])
        assert found.importance is not None
        return found.logits[0], found.importance[0]


def test_words_pruned_are_those_of_queries_that_go_on_and_of_all(tmp_path):
    toy = Toy(noise=(1.0, 0.1), base_ms=(1.0, 5.0), classes=2)
    data = toy.data(60)
    tokenizer = tokenizer_of(tmp_path)
    levels = [ToyLevel(toy, place, tokenizer, []) for place in (0, 1)]
    two = candidate((0, 1), 0.9, 2.0)
    queries = TaskQueries(data.texts, tuple("ab"[number] for number in data.truth))
    found = Sweeps(manifest(two), two, levels, queries).pruned_words()  # type: ignore[arg-type]
    small = toy.outputs(0, data.texts)
    rerouted = reroute_probability(confidence(Calibration(temperature=1.7), small.logits), 0.9, 10.0)
    for each, scale in zip(found, (0.5, 0.7, 0.9), strict=True):
        stay = [
            kept_words(levels[0].read(text), received, scale)
            for text, received in zip(data.texts, small.importance, strict=True)
        ]
        words, gone = np.array([len(kept) for kept in stay]), np.array([(~kept).sum() for kept in stay])
        assert each.scale == scale
        assert each.every == pytest.approx(gone.sum() / words.sum())
        assert each.re_routed == pytest.approx((rerouted * gone).sum() / (rerouted * words).sum())
    assert found[0].every < found[2].every
    report = Report("tabi", True)
    outcome.add_pruned_words(report, {"sst2": found, "qnli": found})
    assert list(report.tables[0].columns[4].cells) == ["3.8%", "14.2%", "62.5%", "-", "-", "-"]


def test_engines_with_and_without_importance_take_turns(tmp_path):
    asked: list[tuple[int, str]] = []
    toy, tokenizer = Toy(noise=(1.0, 0.1), base_ms=(1.0, 5.0)), tokenizer_of(tmp_path)
    levels = [ToyLevel(toy, place, tokenizer, asked) for place in (0, 1)]
    read = [levels[0].read((text,)) for text in ("w1", "w2", "w3")]
    assert len(importance._round(levels, read)) == 2  # type: ignore[arg-type]
    assert asked[2:] == [(0, "w1"), (1, "w1"), (1, "w2"), (0, "w2"), (0, "w3"), (1, "w3")]
    assert importance.ImportanceCost("small", 3.0, 2.0, (1.4, 1.6, 1.5)).ratio == 1.5
