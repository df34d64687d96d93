"""Training tasks of every kind on a tiny encoder, and the terms that are stored."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from testing.models import make_tiny_classifier
from tidal.errors import InvalidArgument, Unsupported
from tidal.pets.tasks.folder import add_task, load_task
from tidal.pets.tasks.manifest import Provenance
from tidal.pets.terms import BaseLayers, Bottleneck, LinearTerms, LowRankDelta, SparseDelta, TaskTerms
from tidal.tasks.folder import tasks_folder
from tidal_builders.pets.base import base_layers
from tidal_builders.pets.encoder import read_encoder
from tidal_builders.pets.training.examples import Examples
from tidal_builders.pets.training.merged import merged_classifier
from tidal_builders.pets.training.settings import TrainingSettings
from tidal_builders.pets.training.train import TRAINABLE, Trained, train_task

pytestmark = pytest.mark.slow

KINDS = sorted(TRAINABLE)
GOOD, BAD = ("good", "great", "love", "best"), ("bad", "awful", "hate", "worst")
LABELS = ("bad", "good")
# A tiny encoder of random weights needs higher rates, and has too few weights to change only one in 200.
TOY_RATES = {"adapter": 1e-2, "bitfit": 1e-2, "diff_pruning": 3e-3, "lora": 1e-2, "maskbert": 5e-2}
KEPT = 0.05


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_classifier(tmp_path_factory.mktemp("tiny") / "model", layers=1)


def base_of(source: Path) -> BaseLayers:
    return base_layers(read_encoder(AutoModel.from_pretrained(source)))[0]


def reviews(count: int) -> tuple[list[tuple[str, ...]], list[str]]:
    """Random texts whose label depends on their first word."""
    draw = random.Random(0)
    texts: list[tuple[str, ...]] = []
    truth = []
    for number in range(count):
        words = draw.choices(("the", "film", "song", "service", "was", "very", "table"), k=draw.randint(1, 4))
        words.insert(0, draw.choice(GOOD if number % 2 else BAD))
        texts.append((" ".join(words),))
        truth.append(LABELS[number % 2])
    return texts, truth


def train(source: Path, kind: str, *, texts: Sequence[Sequence[str]], truth: Sequence[str]) -> Trained:
    encoder, tokenizer = AutoModel.from_pretrained(source), AutoTokenizer.from_pretrained(source)
    base = base_layers(read_encoder(encoder))[0]
    rate = TOY_RATES.get(kind)
    settings = TrainingSettings(epochs=8, batch=16, bottleneck=8, rank=4, rate=rate, head_rate=1e-2, changed_share=KEPT)
    return train_task(encoder, tokenizer, base, kind, texts, truth, LABELS, settings)


@pytest.fixture(scope="module")
def trained(source: Path) -> dict[str, Trained]:
    texts, truth = reviews(192)
    return {kind: train(source, kind, texts=texts, truth=truth) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_lowers_the_loss(trained: dict[str, Trained], kind: str) -> None:
    losses = trained[kind].losses
    assert losses[-1] < 0.75 * losses[0], losses


@pytest.mark.parametrize("kind", KINDS)
def test_a_stored_task_equals_the_trained_model(source: Path, trained: dict[str, Trained], kind: str, tmp_path) -> None:
    base = base_of(source)
    made = Provenance(format="trained", source="toy reviews")
    add_task(tasks_folder(tmp_path), "toy", kind, trained[kind].terms, base, made)
    stored = load_task(tasks_folder(tmp_path), "toy", base)
    texts, truth = reviews(64)
    inputs = Examples(AutoTokenizer.from_pretrained(source), texts, 128).padded(range(64))
    with torch.inference_mode():
        logits = merged_classifier(source, stored.terms)(**inputs).logits
        direct = merged_classifier(source, trained[kind].terms)(**inputs).logits
    assert torch.allclose(logits, direct, atol=1e-5)
    right = np.mean([LABELS[row.argmax()] == label for row, label in zip(logits, truth, strict=True)])
    assert right > 0.6


def test_the_trained_model_equals_its_terms_in_a_fresh_model(source: Path) -> None:
    """The trained encoder itself, with its hooks and changed weights, is the reference."""
    texts, truth = reviews(48)
    inputs = Examples(AutoTokenizer.from_pretrained(source), texts, 128).padded(range(48))
    for kind in KINDS:
        encoder, tokenizer = AutoModel.from_pretrained(source), AutoTokenizer.from_pretrained(source)
        base = base_layers(read_encoder(encoder))[0]
        terms = train_task(encoder, tokenizer, base, kind, texts, truth, LABELS, TrainingSettings(epochs=2)).terms
        with torch.inference_mode():
            pooled = encoder.eval()(**inputs).pooler_output
            wanted = pooled @ torch.from_numpy(terms.head.weight).T + torch.from_numpy(terms.head.bias)
            found = merged_classifier(source, terms)(**inputs).logits
        assert torch.allclose(found, wanted, atol=1e-5), kind


def of_linear(terms: TaskTerms) -> list[LinearTerms]:
    return list(terms.linear.values())


def test_each_kind_changes_the_layers_of_its_paper(source: Path, trained: dict[str, Trained]) -> None:
    base = base_of(source)
    sizes = {path: layer.weight.size for path, layer in base.linear.items()}
    terms = {kind: each.terms for kind, each in trained.items()}
    assert {path.split(".", 3)[-1] for path in terms["adapter"].linear} == {"output.dense", "attention.output.dense"}
    assert all(isinstance(each.bottleneck, Bottleneck) for each in of_linear(terms["adapter"]))
    assert all(isinstance(each.delta, LowRankDelta) for each in of_linear(terms["lora"]))
    assert {path.rsplit(".", 1)[-1] for path in terms["lora"].linear} == {"query", "value"}
    assert not terms["lora"].norm
    assert all(each.delta is None and each.bias is not None for each in of_linear(terms["bitfit"]))
    assert set(terms["bitfit"].norm) == set(base.norm)
    for kind, share in (("maskbert", TrainingSettings().masked_share), ("diff_pruning", KEPT)):
        assert set(terms[kind].linear) == set(base.linear)  # the pooler too
        for path, each in terms[kind].linear.items():
            assert isinstance(each.delta, SparseDelta)
            assert len(each.delta.values) == pytest.approx(share * sizes[path], abs=1)
    assert all(each.bias is not None for each in of_linear(terms["diff_pruning"]))


def test_masks_are_trained(source: Path, trained: dict[str, Trained]) -> None:
    base = base_of(source)
    moved = 0
    for path, each in trained["maskbert"].terms.linear.items():
        assert isinstance(each.delta, SparseDelta)
        size = np.sort(np.abs(base.linear[path].weight).reshape(-1))
        moved += int((np.abs(each.delta.values) > size[len(each.delta.values) - 1]).sum())
    assert moved > 0


def test_unknown_labels_and_kinds_are_refused(source: Path) -> None:
    with pytest.raises(InvalidArgument, match="'so-so' is not one of the task's"):
        train(source, "bitfit", texts=[("good",)], truth=["so-so"])
    with pytest.raises(InvalidArgument, match="accepted: adapter, bitfit"):
        train(source, "full", texts=[("good",)], truth=["good"])


def test_a_model_with_another_classifier_is_refused(source: Path, trained: dict[str, Trained], monkeypatch) -> None:
    from transformers import AutoModelForSequenceClassification

    monkeypatch.setattr(
        AutoModelForSequenceClassification, "from_pretrained", lambda *_, **__: torch.nn.Linear(2, 2), raising=True
    )
    with pytest.raises(Unsupported, match="no classifier of one linear layer"):
        merged_classifier(source, trained["lora"].terms)


def test_batches_have_similar_lengths_and_every_text_once(source: Path) -> None:
    texts, _ = reviews(100)
    examples = Examples(AutoTokenizer.from_pretrained(source), texts, 128)
    lengths = examples.lengths()
    batches = list(examples.shuffled(10, np.random.default_rng(0)))
    assert sorted(row for rows in batches for row in rows) == list(range(100))
    assert np.mean([np.ptp([lengths[row] for row in rows]) for rows in batches]) < 3
    assert [len(rows) for rows in examples.sorted(64)] == [64, 36]


def test_pairs_are_cut_to_the_longest_text(source: Path) -> None:
    examples = Examples(AutoTokenizer.from_pretrained(source), [("good film", "bad film"), ("the " * 99, "a")], 20)
    assert max(examples.lengths()) == 20
    assert examples.padded([0, 1])["token_type_ids"].max() == 1
