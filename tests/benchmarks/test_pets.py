"""The parts of PetS's comparison that decide what is compared with what, and what figures say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.pets import full_models, outcome, strategies, tasks
from benchmarks.pets.answers import Accuracy, Agreement
from benchmarks.pets.breakdown import TimeSplit, memory_split
from benchmarks.pets.capacity import BUDGET, Capacity, FittingTasks
from benchmarks.pets.changes import Changes
from benchmarks.pets.full_models import FullModels, full_weights
from benchmarks.pets.reference import agreement
from benchmarks.pets.strategies import Executed
from benchmarks.pets.systems import PARS, SEQS, forms
from benchmarks.pets.tasks import DENSE_KINDS, KINDS, REAL_TASKS, random_tasks
from benchmarks.pets.throughput import TIDAL, ThroughputCase, ThroughputOutcome
from benchmarks.pets.timing import medians
from benchmarks.pets.waves import Waves, WaveShape, as_input, make_waves
from benchmarks.report import Report
from testing.models import make_tiny_classifier
from tidal.pets.terms import BaseLayers
from tidal_builders.pets.base import base_layers
from tidal_builders.pets.encoder import read_encoder
from tidal_builders.pets.training.merged import merged_classifier
from tidal_builders.pets.typical import typical_task


class OneWord:
    """Texts that name their number."""

    def __init__(self) -> None:
        self.made = 0

    def text(self, tokens: int) -> str:
        self.made += 1
        return f"{self.made} of {tokens}"


def test_real_tasks_are_eight_and_more_of_all_kinds() -> None:
    assert len({task.name for task in REAL_TASKS}) >= 8
    assert {task.kind for task in REAL_TASKS} == set(KINDS)
    assert len({task.task for task in REAL_TASKS}) == len(REAL_TASKS)


def test_random_tasks_take_turns_and_dense_ones_are_dense() -> None:
    found = random_tasks(10)
    assert [task.kind for task in found] == [*KINDS, *KINDS]
    assert {task.kind for task in random_tasks(32, DENSE_KINDS)} == set(DENSE_KINDS)
    assert len({task.task for task in random_tasks(tasks.RANDOM_TASKS)}) == tasks.RANDOM_TASKS
    with pytest.raises(ValueError, match="there are 128 random tasks"):
        random_tasks(129)


def test_a_wave_asks_every_task_once_and_no_text_twice() -> None:
    waves = make_waves(OneWord(), ["a", "b", "c"], WaveShape(2, 3, 16), 4)  # type: ignore[arg-type]
    assert [[task for task, _ in wave] for wave in waves] == [["a", "b"]] * 4
    texts = [text for wave in waves for _, each in wave for text in each]
    assert len(set(texts)) == len(texts) == 24
    assert as_input(["x", "é"]).tolist() == [[b"x"], ["é".encode()]]


def test_both_baselines_have_forms() -> None:
    found = forms(2)
    assert {form.system for form in found.values()} == {SEQS, PARS}
    # One model at a time with all threads, or several with one each: never more threads than cores but by waiting.
    assert all(form.workers == 1 and form.threads == 2 for form in found.values() if form.system == SEQS)
    assert all(form.threads == 1 for form in found.values() if form.system == PARS)


def waves_of(per_second: list[float], ms: float = 10.0) -> list[Waves]:
    return [Waves(queries=round(100 * each), seconds=100.0, latencies_ms=[ms, 2 * ms]) for each in per_second]


def an_outcome(
    name: str, tidal: list[float], other: list[float], over: str = SEQS, shape: WaveShape | None = None
) -> ThroughputOutcome:
    case = ThroughputCase(name, ("a",), shape or WaveShape(32, 1, 16), {TIDAL: "minilm", over: "seqs"})
    return ThroughputOutcome(case, {TIDAL: waves_of(tidal), over: waves_of(other)})


def test_ratios_are_of_rounds_that_lay_together() -> None:
    # The second round was slow for both.
    found = an_outcome("all,16", [200, 100, 210], [100, 50, 100])
    assert found.ratio(SEQS) == pytest.approx(2.0)
    assert found.per_second(TIDAL) == 200
    assert found.latency(TIDAL, 50) == 15


def test_crossover_is_the_fewest_tasks_from_which_on_sharing_wins() -> None:
    def swept(tasks: int, ratio: float) -> ThroughputOutcome:
        return an_outcome("tasks", [ratio], [1.0], shape=WaveShape(tasks, 1, 32))

    found = [swept(1, 0.8), swept(2, 1.1), swept(4, 0.9), swept(8, 1.2), swept(16, 1.4)]
    assert outcome.crossover(found) == 8
    assert outcome.crossover(found[:3]) is None
    assert outcome.crossover([]) is None


def executed(batching: str, seconds: float, *, tasks: int = 32, spread: float = 1) -> Executed:
    return Executed(batching, tasks, spread, seconds, seconds, 0.01, 10)


def some_batching() -> list[Executed]:
    ways = {"fixed": 2.0, strategies.PADDED: 3.0, "coordinated": 1.6, "joint": 1.0, strategies.TUNED: 1.5}
    return [executed(way, seconds * scale, spread=scale) for way, seconds in ways.items() for scale in (1, 8)]


def test_speedup_is_a_mean_over_pools_not_over_seconds() -> None:
    found = [executed("fixed", 2, spread=1), executed("joint", 1, spread=1)]
    found += [executed("fixed", 100, spread=8), executed("joint", 100, spread=8)]
    found += [executed("fixed", 9, tasks=64), executed("joint", 1, tasks=64)]
    assert strategies.speedup(found, "joint", "fixed", 32) == pytest.approx(1.5)
    assert strategies.speedup(found, "joint", "fixed") == pytest.approx((2 + 1 + 9) / 3)


def held(shared: float, each: float, weights: float = 0.0, count: int = 5) -> FittingTasks:
    return FittingTasks(shared, dict.fromkeys(KINDS, each), count, weights, weights, True, 1.0)


def test_capacity_is_counted_where_the_budget_was_filled() -> None:
    mib = 1 << 20
    tasks, full = held(48 * mib, 1 * mib), held(0, 100 * mib)
    assert tasks.capacity(BUDGET) == 2000
    few = Capacity("a base", tasks, full)
    assert few.ratio == pytest.approx(2000 / 20.48)
    assert not few.counted
    filled = Capacity("a base", held(48 * mib, 1 * mib, BUDGET + 1, 1900), held(0, 100 * mib, BUDGET + 1, 19))
    assert filled.counted
    assert filled.ratio == 100


def test_memory_grows_by_tasks_only() -> None:
    class Engine:
        class description:
            width = 4
            linear = (type("Place", (), {"outputs": 16})(),)

    found = memory_split(Engine(), 100, 2, 50, (1, 8))  # type: ignore[arg-type]
    assert [(each.shared, each.own, each.full) for each in found] == [(100, 2, 50), (100, 16, 400)]
    assert found[1].data == 8 * found[0].data


def test_share_of_the_tasks_is_what_the_base_alone_does_not_take() -> None:
    assert TimeSplit(1, 64, 10.0, 7.0, 20.0).own == pytest.approx(0.3)
    assert TimeSplit(1, 64, 10.0, 10.5, 20.0).own == 0


def test_agreement_counts_labels_and_finds_the_largest_difference() -> None:
    found = [np.array([0.0, 1.0], np.float32), np.array([2.0, 1.0, 0.0], np.float32)]
    wanted = [np.array([0.5, 0.0], np.float32), np.array([2.0, 1.25, 0.0], np.float32)]
    assert agreement(found, wanted) == (0.5, 1.0)


def test_medians_are_of_what_follows_a_warm_call() -> None:
    calls: list[str] = []
    found = medians([lambda: calls.append("a"), lambda: calls.append("b")], 2)
    assert calls == ["a", "a", "b", "b"] * 2
    assert len(found) == 2


def test_claims_have_the_names_and_goals_that_were_asked_for() -> None:
    report = Report("pets", True)
    cases = [an_outcome(name, [2.0], [1.0]) for name in ("dense,16", "all,16", "all,32")]
    cases += [an_outcome(PARS, [1.2], [1.0], PARS), an_outcome(PARS, [1.4], [1.0], PARS)]
    outcome.add_throughput(report, cases)
    outcome.add_throughput_claims(report, cases)
    outcome.add_capacity(report, [Capacity("a base", held(0, 1 << 20), held(0, 64 << 20))])
    outcome.add_strategies(report, some_batching(), 48)
    rows = Agreement(1000, 0.9995, 1e-6, 20, 12.5)
    outcome.add_answers(report, rows, [Accuracy("trec", "maskbert", 100, 0.9, 0.9, 1.0, 1024)])
    outcome.add_changes(report, Changes(3, 3, 100, 0))
    claims = {claim.name: (claim.goal, round(claim.measured, 4)) for claim in report.claims}
    assert claims == {
        "throughput_vs_seqs[dense,16]": (">= 1.8", 2.0),
        "throughput_vs_seqs[all,16]": (">= 1.5", 2.0),
        "throughput_vs_seqs[all,32]": (">= 1.25", 2.0),
        "throughput_vs_pars[16]": (">= 1.18", 1.3),
        "max_tasks_vs_seqs": (">= 35", 64.0),
        "cb_vs_fixed[32]": (">= 1.25", 2.0),
        "cb_vs_tuned_fixed": ("> 1.0", 1.5),
        "packed_vs_padded[σ=8]": (">= 1.3", 1.5),
        "predicted_vs_measured": (">= 0.95", 1.0),
        "row_agreement": (">= 0.999", 0.9995),
        "row_agreement_mixed_batches": (">= 1", 20),
        "accuracy_served_vs_offline": ("<= 0.001", 0.0),
        "failed_during_task_changes": ("== 0", 0),
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_classifier(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def base(source: Path) -> BaseLayers:
    from transformers import AutoModel

    return base_layers(read_encoder(AutoModel.from_pretrained(source)))[0]


@pytest.mark.slow
def test_full_models_are_their_tasks_merged_into_transformers(source: Path, base: BaseLayers, tmp_path: Path) -> None:
    full_models.write_templates(source, base, tmp_path)
    models = FullModels(tmp_path, base)
    ids = np.random.default_rng(0).integers(5, 60, (3, 9))
    mask = np.ones_like(ids)
    mask[1, 5:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    for kind in KINDS:
        terms = typical_task(kind, base, seed=3)
        with torch.inference_mode():
            given = {name: torch.from_numpy(array) for name, array in inputs.items()}
            wanted = merged_classifier(source, terms)(**given).logits.numpy()
        for own_tables in (False, True):
            found = full_models.run(models.compile(terms, 1, own_tables=own_tables), inputs)
            assert np.abs(found - wanted).max() < 1e-4, kind


def test_weights_of_a_full_model_are_those_that_differ(base: BaseLayers) -> None:
    weights = full_weights(typical_task("lora", base), base)
    assert {name.rsplit(".", 1)[0].rsplit(".", 1)[-1] for name in weights} == {"classifier", "query", "value"}
    adapters = full_weights(typical_task("adapter", base), base)
    assert any(name.endswith("output.dense/down") for name in adapters)
