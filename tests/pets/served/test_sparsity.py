"""Choosing the sparsity of a fine-tuned checkpoint by the answers of the task, and refusing it if they differ."""

from __future__ import annotations

import json
import random
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from typer.testing import CliRunner, Result

from testing.pets import Base
from tidal.commands import tasks as command
from tidal.tasks.folder import tasks_folder
from tidal_builders.pets.importing.comparison import agreement
from tidal_builders.pets.importing.ladder import LADDER, SparsityStep, best_step, climb

pytestmark = pytest.mark.slow

LABELS = ("bad", "good")
GOOD, BAD = ("good", "great", "love", "best"), ("bad", "awful", "hate", "worst")
FILLERS = ("the", "film", "song", "service", "was", "very", "table", "not", "a", "please", "book", "city")


def reviews(count: int, seed: int) -> tuple[list[str], list[int]]:
    """Random texts with two words that determine their label."""
    draw = random.Random(seed)
    texts, truth = [], []
    for _ in range(count):
        label = draw.randrange(2)
        words = draw.choices(FILLERS, k=draw.randint(2, 8)) + draw.choices((BAD, GOOD)[label], k=2)
        draw.shuffle(words)
        texts.append(" ".join(words))
        truth.append(label)
    return texts, truth


@dataclass(frozen=True)
class Tuned:
    """A checkpoint fine-tuned from the base, labelled queries, and its accuracy on them."""

    folder: Path
    data: Path
    accuracy: float


def fine_tune(base: Path, folder: Path) -> Tuned:
    torch.manual_seed(0)
    named: Any = {"id2label": dict(enumerate(LABELS)), "label2id": {label: n for n, label in enumerate(LABELS)}}
    model = AutoModelForSequenceClassification.from_pretrained(base, ignore_mismatched_sizes=True, **named)
    tokenizer = AutoTokenizer.from_pretrained(base)
    model.bert.embeddings.requires_grad_(False)
    texts, truth = reviews(640, seed=1)
    optimiser = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-3)
    model.train()
    for step in range(0, 5 * len(texts), 32):
        rows = slice(step % len(texts), step % len(texts) + 32)
        inputs = tokenizer(texts[rows], padding=True, return_tensors="pt")
        loss = model(**inputs, labels=torch.tensor(truth[rows])).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    texts, truth = reviews(200, seed=2)
    with torch.inference_mode():
        found = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits.argmax(-1)
    lines = [f"{text}\t{LABELS[label]}" for text, label in zip(texts, truth, strict=True)]
    (folder / "data.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    return Tuned(folder, folder / "data.tsv", float((found.numpy() == truth).mean()))


@pytest.fixture(scope="module")
def tuned(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    return fine_tune(base.source, tmp_path_factory.mktemp("tuned"))


@pytest.fixture(scope="module")
def whole(tuned: Tuned, tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """A checkpoint whose embeddings differ from the base's too, which a task cannot store."""
    folder = tmp_path_factory.mktemp("whole")
    shutil.copytree(tuned.folder, folder, dirs_exist_ok=True)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        for weight in model.bert.embeddings.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    model.save_pretrained(folder)
    return Tuned(folder, tuned.data, tuned.accuracy)


@pytest.fixture(scope="module")
def repository(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    base.copy(folder, "base")
    return folder


def add(repository: Path, source: Tuned, name: str, *options: str | Path) -> Result:
    arguments = ["add", "base", str(source.folder), "--name", name, *map(str, options), "--repository", str(repository)]
    return CliRunner().invoke(command.tasks, arguments)


def provenance(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["provenance"]  # type: ignore[no-any-return]


def refused(repository: Path, found: Result) -> str:
    assert found.exit_code == 1, found.output
    assert not list(tasks_folder(repository / "base").glob("*refused*"))
    return found.stderr


def steps_of(notes: list[str], what: str) -> dict[float, float]:
    (note,) = [each for each in notes if f"was chosen by {what}: " in each]
    return {float(at): float(figure) for figure, at in re.findall(r"([\d.]+)% at ([\d.]+)", note)}


class TestChoice:
    def test_by_accuracy_on_labelled_queries(self, repository: Path, tuned: Tuned) -> None:
        printed = add(repository, tuned, "by_accuracy", "--data", tuned.data)
        assert re.search(r"note: sparsity 0\.\d+ was chosen by accuracy: .*% at 0\.995, ", printed.stdout)
        assert re.search(rf"accuracy on 200 queries: .*; the source's: {tuned.accuracy:.2%}", printed.stdout)
        record = tasks_folder(repository / "base") / "by_accuracy/task.json"
        found = json.loads(record.read_text())["provenance"]
        kept, steps = found["accuracy"], steps_of(found["notes"], "accuracy")
        assert kept["source_accuracy"] == pytest.approx(tuned.accuracy)
        assert tuned.accuracy > 0.9
        assert kept["source_accuracy"] - kept["accuracy"] <= 0.02 + 1e-9
        assert min(steps) < 0.995  # the sparsest step is not good enough
        assert 100 * tuned.accuracy - steps[0.995] > 5
        assert steps[min(steps)] == pytest.approx(100 * kept["accuracy"], abs=0.01)
        assert any(f"{min(steps):.2%} sparse" in note for note in found["notes"])

    def test_by_agreement_on_generated_texts_without_data(self, repository: Path, tuned: Tuned) -> None:
        found = provenance(add(repository, tuned, "by_agreement", "--json"))
        steps = steps_of(found["notes"], "agreement")
        assert list(steps) == list(LADDER[: len(steps)])
        assert [figure >= 95 for figure in steps.values()] == [False] * (len(steps) - 1) + [True]
        assert found["answers"]["agreement"] >= 0.95
        assert found["accuracy"] is None


class TestRefusing:
    def test_a_given_sparsity_that_loses_too_much(self, repository: Path, tuned: Tuned) -> None:
        message = refused(repository, add(repository, tuned, "refused", "--sparsity", "0.995", "--data", tuned.data))
        assert re.search(r"accuracy on 200 queries is .*accepted is a loss of up to 2\.00%", message)
        assert "a lower --sparsity keeps more of the checkpoint, without --sparsity it is chosen" in message
        message = refused(repository, add(repository, tuned, "refused", "--sparsity", "0.995"))
        assert re.search(
            r"agreement with the checkpoint on 128 generated texts is .*; accepted is 95\.0% and " r"more", message
        )

    def test_is_overridden_by_force_or_another_limit(self, repository: Path, tuned: Tuned) -> None:
        options = ("--sparsity", "0.995", "--json")
        forced = provenance(add(repository, tuned, "forced", "--force", *options))
        assert "added by --force: agreement with the checkpoint" in forced["notes"][-1]
        assert forced["answers"]["agreement"] < 0.95
        loose = provenance(add(repository, tuned, "loose", "--min-agreement", "0", *options))
        assert not any("--force" in note for note in loose["notes"])

    def test_a_checkpoint_that_differs_at_every_sparsity(self, repository: Path, whole: Tuned) -> None:
        found = add(repository, whole, "refused", "--min-agreement", "0.9999")
        message = refused(repository, found)
        assert "no sparsity keeps the checkpoint's answers: agreement is " in message
        assert "% at 0; accepted is 100.0% and more (--min-agreement)" in message
        assert re.search(
            r"not carried, because a task cannot change it: " r"embeddings\..*embeddings\.word_embeddings", message
        )
        best_step = provenance(add(repository, whole, "best", "--min-agreement", "0.9999", "--force", "--json"))
        steps = steps_of(best_step["notes"], "agreement")
        assert list(steps) == list(LADDER)
        assert best_step["answers"]["agreement"] == pytest.approx(max(steps.values()) / 100, abs=1e-3)


class TestLadder:
    def test_ends_at_the_first_accepted_step(self) -> None:
        steps = climb(lambda sparsity: SparsityStep(sparsity, 1 - sparsity, ""), 0.09)
        assert [step.sparsity for step in steps] == [0.995, 0.99, 0.98, 0.95, 0.9]

    def test_of_equal_steps_the_sparsest_is_the_best(self) -> None:
        steps = climb(lambda sparsity: SparsityStep(sparsity, min(0.5, 1 - sparsity), ""), 0.9)
        assert [step.sparsity for step in steps] == list(LADDER)
        assert best_step(steps).sparsity == 0.5


class TestAgreement:
    def test_of_equal_answers_is_1(self) -> None:
        logits = np.array([[1.0, 2.0], [3.0, -1.0]], np.float32)
        assert agreement("classification", logits, logits) == 1.0

    def test_counts_labels(self) -> None:
        sure = np.array([[9.0, 0.0]] * 4, np.float32)
        turned = sure.copy()
        turned[0] = turned[0, ::-1]
        assert agreement("classification", sure, turned) == pytest.approx(0.75, abs=1e-3)

    def test_depends_on_confidence_too(self) -> None:
        """Both predict class 0 for every text, one of them with low confidence."""
        sure, unsure = np.array([[9.0, 0.0]] * 4, np.float32), np.array([[0.1, 0.0]] * 4, np.float32)
        assert agreement("classification", sure, unsure) == pytest.approx(0.525, abs=1e-3)

    def test_of_nan_is_0(self) -> None:
        nothing = np.full((1, 2), np.nan, np.float32)
        assert agreement("classification", np.zeros((1, 2), np.float32), nothing) == 0.0
