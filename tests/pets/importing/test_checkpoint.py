"""Fully fine-tuned checkpoints as tasks: BitFit where only biases and norms changed, else the largest differences."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    RobertaConfig,
    RobertaForSequenceClassification,
    RobertaModel,
)

from testing.models import make_tiny_classifier
from testing.small_base import same_terms
from tests.pets.importing.reference import answer, logits
from tidal.errors import InvalidArgument, Unsupported
from tidal_builders.pets.base import base_layers
from tidal_builders.pets.encoder import read_encoder
from tidal_builders.pets.importing.imported import ImportBase, ImportOptions
from tidal_builders.pets.importing.recognise import import_task
from tidal_builders.pets.importing.sources import load_source
from tidal_builders.pets.merging import merged_weights

LABELS = ("negative", "neutral", "positive")


def tuned(base_folder: Path, folder: Path, change: Callable[[str], bool]) -> Any:
    """Save the base with noise added to the weights that `change` selects; returns the model."""
    torch.manual_seed(4)
    model = AutoModelForSequenceClassification.from_pretrained(base_folder).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if change(name):
                weight.add_(torch.randn_like(weight) * 0.05)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(base_folder).save_pretrained(folder)
    return model


def linear_or_norm(name: str) -> bool:
    return "_embeddings" not in name


def test_changed_biases_and_norms_become_a_bitfit_task_with_the_same_answers(
    base_folder: Path, base: ImportBase, tmp_path: Path
) -> None:
    model = tuned(base_folder, tmp_path, lambda name: name.endswith("bias") or "LayerNorm" in name)
    found = import_task(tmp_path, base, ImportOptions())
    assert found.kind == "bitfit"
    assert found.terms.head.labels == LABELS
    assert not found.provenance.notes
    np.testing.assert_allclose(answer(base_folder, found.terms, base.layers), logits(model), atol=1e-5)


def test_all_differences_give_the_same_answers(base_folder: Path, base: ImportBase, tmp_path: Path) -> None:
    model = tuned(base_folder, tmp_path, linear_or_norm)
    found = import_task(tmp_path, base, ImportOptions(sparsity=0))
    assert found.kind == "diff_pruning"
    np.testing.assert_allclose(answer(base_folder, found.terms, base.layers), logits(model), atol=1e-5)
    state = model.base_model.state_dict()
    for name, weight in merged_weights(found.terms, base.layers).items():
        np.testing.assert_allclose(weight, state[name], atol=1e-6)


def test_a_sparse_difference_keeps_the_largest_changes_of_the_whole_model(
    base_folder: Path, base: ImportBase, tmp_path: Path
) -> None:
    model = tuned(base_folder, tmp_path, lambda name: linear_or_norm(name) and "layer.0" not in name)
    found = import_task(tmp_path, base, ImportOptions(sparsity=0.9))
    state = model.base_model.state_dict()
    total = sum(layer.weight.size for layer in base.layers.linear.values())
    kept, left = [], []
    merged = merged_weights(found.terms, base.layers)
    for path, layer in base.layers.linear.items():
        difference = np.abs(state[f"{path}.weight"].numpy() - layer.weight)
        taken = merged.get(f"{path}.weight", layer.weight) != layer.weight
        kept += difference[taken].tolist()
        left += difference[~taken].tolist()
    assert len(kept) == round(total * 0.1)
    assert min(kept) >= max(left)
    assert not any("layer.0" in path and change.delta for path, change in found.terms.linear.items())
    assert found.provenance.notes[0].startswith(f"kept the {len(kept)} largest of {total} weight differences (90.00%")


def test_changed_embeddings_are_noted(base_folder: Path, base: ImportBase, tmp_path: Path) -> None:
    tuned(base_folder, tmp_path, lambda _name: True)
    notes = import_task(tmp_path, base, ImportOptions()).provenance.notes
    assert notes[0].startswith("not carried, because a task cannot change it: embeddings.")
    assert "embeddings.word_embeddings.weight" in notes[0]


def test_a_task_is_independent_of_the_model_that_it_was_imported_from(
    base_folder: Path, base: ImportBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrays must not be views of the checkpoint's weights, which the comparison changes."""
    tuned(base_folder, tmp_path, lambda name: name.endswith("bias") or "LayerNorm" in name)
    loaded = []

    def load(folder: Path, task: str) -> Any:
        loaded.append(load_source(folder, task))
        return loaded[-1]

    monkeypatch.setattr("tidal_builders.pets.importing.checkpoint.load_source", load)
    found = import_task(tmp_path, base, ImportOptions())
    before = copy.deepcopy(found.terms)
    with torch.no_grad():
        for weight in loaded[0].parameters():
            weight.zero_()
    assert len(before.norm) == 5
    assert same_terms(found.terms, before)


def test_masks_are_stored_completely_at_any_sparsity(base_folder: Path, base: ImportBase, tmp_path: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(base_folder).eval()
    torch.manual_seed(9)
    with torch.no_grad():
        for layer in model.bert.encoder.layer:
            layer.output.dense.weight.mul_(torch.rand_like(layer.output.dense.weight) > 0.1)
    model.save_pretrained(tmp_path)
    found = import_task(tmp_path, base, ImportOptions(sparsity=0.995))
    assert (found.kind, found.lossless) == ("maskbert", True)
    assert "a mask, which is stored completely" in found.provenance.notes[0]
    np.testing.assert_allclose(answer(base_folder, found.terms, base.layers), logits(model), atol=1e-5)


def test_default_label_names_are_reported(base_folder: Path, base: ImportBase, tmp_path: Path) -> None:
    numbered = {number: f"LABEL_{number}" for number in range(3)}
    model = AutoModelForSequenceClassification.from_pretrained(base_folder, id2label=numbered)
    model.save_pretrained(tmp_path)
    message = "the checkpoint only numbers its labels (LABEL_0 …); name them by --labels"
    assert message in import_task(tmp_path, base, ImportOptions()).provenance.notes
    assert message not in import_task(tmp_path, base, ImportOptions(labels=LABELS)).provenance.notes


@pytest.mark.parametrize(
    ("architecture", "fields", "task"),
    [
        (AutoModelForSequenceClassification, {"num_labels": 1}, "regression"),
        (AutoModelForSequenceClassification, {"problem_type": "multi_label_classification"}, "multi-label"),
        (AutoModelForSequenceClassification, {"problem_type": "regression"}, "regression"),
        (AutoModelForTokenClassification, {}, "token-classification"),
        (AutoModelForQuestionAnswering, {"num_labels": 2}, "question-answering"),
    ],
)
def test_checkpoints_for_other_tasks(
    base_folder: Path, base: ImportBase, tmp_path: Path, architecture: Any, fields: dict[str, Any], task: str
) -> None:
    model = architecture.from_pretrained(base_folder, ignore_mismatched_sizes=True, **fields)
    model.save_pretrained(tmp_path)
    found = import_task(tmp_path, base, ImportOptions())
    layer = getattr(model, "classifier", None) or model.qa_outputs
    assert (found.kind, found.terms.head.task) == ("bitfit", task)
    assert not found.terms.linear  # the base's pooler is kept where the task does not read it
    np.testing.assert_array_equal(found.terms.head.weight, layer.weight.detach())


class TestRefusing:
    def test_a_head_with_more_outputs_than_its_task_has(
        self, base_folder: Path, base: ImportBase, tmp_path: Path
    ) -> None:
        AutoModelForQuestionAnswering.from_pretrained(base_folder).save_pretrained(tmp_path)
        with pytest.raises(InvalidArgument, match="the head has 3 outputs; a head for question-answering has 2"):
            import_task(tmp_path, base, ImportOptions())

    def test_another_encoder(self, base: ImportBase, tmp_path: Path) -> None:
        make_tiny_classifier(tmp_path, hidden=64)
        with pytest.raises(
            InvalidArgument, match=r"is not a fine-tuned version of this base: layer '.*' is \(64, " r"64\)"
        ):
            import_task(tmp_path, base, ImportOptions())

    def test_another_depth(self, base: ImportBase, tmp_path: Path) -> None:
        make_tiny_classifier(tmp_path, hidden=32, layers=1)
        with pytest.raises(InvalidArgument, match=r"layer 'encoder.layer.1.* is missing in it, \(32, 32\) in the base"):
            import_task(tmp_path, base, ImportOptions())

    def test_pickled_weights(self, base_folder: Path, base: ImportBase, tmp_path: Path) -> None:
        model = AutoModelForSequenceClassification.from_pretrained(base_folder)
        model.config.save_pretrained(tmp_path)
        torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
        with pytest.raises(InvalidArgument, match="no weights as safetensors, and pickled ones"):
            import_task(tmp_path, base, ImportOptions())

    def test_an_encoder_without_a_classifier(self, base_folder: Path, base: ImportBase, tmp_path: Path) -> None:
        AutoModelForSequenceClassification.from_pretrained(base_folder).bert.save_pretrained(tmp_path)
        with pytest.raises(InvalidArgument, match=r"has no modules\.json that says how hidden states become"):
            import_task(tmp_path, base, ImportOptions())
        assert import_task(tmp_path, base, ImportOptions(pooling="cls")).terms.head.task == "embedding"
        (tmp_path / "config.json").write_text((base_folder / "config.json").read_text())
        with pytest.raises(InvalidArgument, match=r"has no weights for classifier\.bias, classifier\.weight"):
            import_task(tmp_path, base, ImportOptions())

    def test_a_sparsity_of_1(self, base_folder: Path, base: ImportBase) -> None:
        with pytest.raises(InvalidArgument, match="the sparsity is 1; accepted is 0 up to, but not, 1"):
            import_task(base_folder, base, ImportOptions(sparsity=1))


class TestTwoLayerHead:
    """RoBERTa's classifier has a dense layer of its own, which replaces the base's pooler."""

    CONFIG = RobertaConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48,
        max_position_embeddings=40, type_vocab_size=1,
    )  # fmt: skip

    def test_is_imported_as_a_difference_of_the_pooler(self, tmp_path: Path) -> None:
        torch.manual_seed(6)
        encoder = RobertaModel(self.CONFIG).eval()
        base = ImportBase(*base_layers(read_encoder(encoder)))
        model = RobertaForSequenceClassification(self.CONFIG).eval()
        model.roberta.load_state_dict(encoder.state_dict(), strict=False)
        model.save_pretrained(tmp_path)
        found = import_task(tmp_path, base, ImportOptions(sparsity=0))
        assert set(found.terms.linear) == {"pooler.dense"}
        merged = merged_weights(found.terms, base.layers)
        np.testing.assert_allclose(merged["pooler.dense.weight"], model.classifier.dense.weight.detach(), atol=1e-6)
        np.testing.assert_array_equal(found.terms.head.weight, model.classifier.out_proj.weight.detach())

    def test_requires_a_pooler_in_the_base(self, tmp_path: Path) -> None:
        base = ImportBase(*base_layers(read_encoder(RobertaModel(self.CONFIG, add_pooling_layer=False))))
        RobertaForSequenceClassification(self.CONFIG).save_pretrained(tmp_path)
        with pytest.raises(Unsupported, match="a head of two layers; the base has no pooler"):
            import_task(tmp_path, base, ImportOptions())
