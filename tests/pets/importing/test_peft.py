"""LoRA adapters saved by an unmodified peft, as tasks with the same merged weights and answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from testing.small_base import MADE, same_terms
from tests.pets.importing.reference import answer, logits
from tidal.errors import InvalidArgument, TidalError, Unsupported
from tidal.pets.tasks.folder import add_task, load_task
from tidal.pets.terms import LowRankDelta
from tidal_builders.pets.importing.imported import ImportBase, ImportOptions
from tidal_builders.pets.importing.recognise import import_task
from tidal_builders.pets.merging import merged_weights

NO_OPTIONS = ImportOptions()


@pytest.fixture(scope="module")
def plain(base_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA adapter with default options; read-only."""
    folder = tmp_path_factory.mktemp("plain")
    saved(base_folder, folder)
    return folder


@pytest.fixture
def adapter(plain: Path, tmp_path: Path) -> Path:
    """A copy of `plain` for a test."""
    return Path(shutil.copytree(plain, tmp_path / "adapter"))


def saved(base_folder: Path, folder: Path, **options: Any) -> Any:
    """Save a LoRA adapter with random values by peft; returns the model that peft merges it into."""
    torch.manual_seed(1)
    model = AutoModelForSequenceClassification.from_pretrained(base_folder)
    chosen = {"task_type": "SEQ_CLS", "r": 4, "lora_alpha": 6, "target_modules": ["query", "value"]} | options
    lora = get_peft_model(model, LoraConfig(**chosen))
    with torch.no_grad():
        for _name, weight in lora.named_parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight) * 0.1)
    lora.save_pretrained(folder)
    return lora.eval().merge_and_unload()


def edit(folder: Path, **changed: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"target_modules": "all-linear", "r": 3},
        {"use_rslora": True},
        {"bias": "all"},
        {"bias": "lora_only"},
        {"lora_bias": True},
        {"rank_pattern": {"value": 2}, "alpha_pattern": {r"layer\.1\..*query": 32, "value": 5}},
        {"layers_to_transform": [1], "init_lora_weights": "gaussian"},
    ],
)
def test_merged_weights_equal_those_of_peft(
    base_folder: Path, base: ImportBase, tmp_path: Path, options: dict[str, Any]
) -> None:
    merged = saved(base_folder, tmp_path / "peft", **options)
    found = import_task(tmp_path / "peft", base, NO_OPTIONS)
    assert found.kind == "lora"
    assert found.terms.head.labels == ("negative", "neutral", "positive")
    ours = merged_weights(found.terms, base.layers)
    theirs = merged.base_model.state_dict()
    changed = {name for name, value in theirs.items() if not np.array_equal(value, shared(base, name, value))}
    assert changed <= ours.keys()
    for name, value in ours.items():
        np.testing.assert_allclose(value, theirs[name], atol=1e-6)
    np.testing.assert_allclose(answer(base_folder, found.terms, base.layers), logits(merged), atol=1e-5)

    add_task(tmp_path / "tasks", "mood", "lora", found.terms, base.layers, MADE)
    assert same_terms(load_task(tmp_path / "tasks", "mood", base.layers).terms, found.terms)


def shared(base: ImportBase, name: str, default: Any) -> Any:
    path, _, part = name.rpartition(".")
    layer = base.layers.linear.get(path) or base.layers.norm.get(path)
    return getattr(layer, part) if layer is not None else default


def test_ranks_and_scales_follow_the_patterns(base_folder: Path, base: ImportBase, tmp_path: Path) -> None:
    saved(base_folder, tmp_path, rank_pattern={"value": 2}, alpha_pattern={"layer.1.attention.self.value": 5})
    scales = {
        path.removeprefix("encoder.layer."): (len(change.delta.down), change.delta.scale)
        for path, change in import_task(tmp_path, base, NO_OPTIONS).terms.linear.items()
        if isinstance(change.delta, LowRankDelta)
    }
    assert scales == {
        "0.attention.self.query": (4, 1.5),
        "0.attention.self.value": (2, 3.0),
        "1.attention.self.query": (4, 1.5),
        "1.attention.self.value": (2, 2.5),
    }


def test_given_labels_replace_those_of_the_config(base: ImportBase, adapter: Path) -> None:
    assert import_task(adapter, base, ImportOptions(labels=("a", "b", "c"))).terms.head.labels == ("a", "b", "c")
    with pytest.raises(InvalidArgument, match="the head has 3 classes, received 2 labels: a, b"):
        import_task(adapter, base, ImportOptions(labels=("a", "b")))
    (adapter / "config.json").write_text('{"id2label": {"0": "x", "2": "z", "1": "y"}}')
    assert import_task(adapter, base, NO_OPTIONS).terms.head.labels == ("x", "y", "z")


def test_notes_how_the_base_was_compared(base_folder: Path, base: ImportBase, adapter: Path) -> None:
    notes = import_task(adapter, base, NO_OPTIONS).provenance.notes
    assert notes[0] == f"trained on {base_folder}, whose weights are those of this model's base"
    edit(adapter, base_model_name_or_path="Some/Base")
    notes = import_task(adapter, base, NO_OPTIONS).provenance.notes
    assert notes[0] == "trained on Some/Base, which this model was built from (the names were compared)"


def test_unknown_labels_must_be_given(base: ImportBase, adapter: Path) -> None:
    """The base's config names three classes; they are used for a head of three only."""
    found = import_task(adapter, base, NO_OPTIONS)
    assert found.provenance.notes[1] == "labels are those of its base's config.json: negative, neutral, positive"
    headless = ImportBase(base.layers, base.info, base.name)
    edit(adapter, base_model_name_or_path="some/base")
    with pytest.raises(InvalidArgument, match=r"does not name the 3 classes of its head.* by --labels A,B,\.\.\."):
        import_task(adapter, headless, NO_OPTIONS)
    assert import_task(adapter, headless, ImportOptions(labels=("a", "b", "c"))).terms.head.labels == ("a", "b", "c")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"task_type": "CAUSAL_LM"}, "cannot be a task: it is a decoder"),
        ({"task_type": "SEQ_2_SEQ_LM"}, "cannot be a task: it is a sequence-to-sequence model"),
        ({"task_type": "FEATURE_EXTRACTION"}, "it has a classifier, which a task of embedding has not"),
    ],
)
def test_adapters_for_other_tasks_are_refused(
    base: ImportBase, adapter: Path, changed: dict[str, Any], message: str
) -> None:
    edit(adapter, **changed)
    with pytest.raises(Unsupported, match=message):
        import_task(adapter, base, NO_OPTIONS)


@pytest.mark.parametrize(
    ("kind", "task", "outputs"),
    [("TOKEN_CLS", "token-classification", 3), (None, "token-classification", 3),
     ("QUESTION_ANS", "question-answering", 2), (None, "question-answering", 2),
     ("FEATURE_EXTRACTION", "embedding", 0)],
)  # fmt: skip
def test_adapters_of_every_task_type_saved_by_peft(
    base_folder: Path, base: ImportBase, tmp_path: Path, kind: str | None, task: str, outputs: int
) -> None:
    model_of = {
        "token-classification": AutoModelForTokenClassification,
        "question-answering": AutoModelForQuestionAnswering,
        "embedding": AutoModel,
    }[task]
    sizes: Any = {"num_labels": 2} if task == "question-answering" else {}
    model = model_of.from_pretrained(base_folder, **sizes)
    head_name = "qa_outputs" if task == "question-answering" else "classifier"
    options: Any = {"modules_to_save": [head_name]} if kind is None else {"task_type": kind}
    get_peft_model(model, LoraConfig(target_modules=["query"], **options)).save_pretrained(tmp_path)
    found = import_task(tmp_path, base, ImportOptions(pooling="mean" if task == "embedding" else None))
    head = found.terms.head
    assert (head.task, len(head.weight), head.token_types) == (task, outputs, kind != "QUESTION_ANS")
    assert len(found.terms.linear) == 2


@pytest.mark.parametrize(
    ("config", "task"),
    [
        ({"architectures": ["BertForSequenceClassification"], "problem_type": "multi_label_classification"},
         "multi-label"),
        ({"problem_type": "regression"}, "regression"),
    ],
)  # fmt: skip
def test_a_config_next_to_the_adapter_is_respected(
    base: ImportBase, adapter: Path, config: dict[str, Any], task: str
) -> None:
    (adapter / "config.json").write_text(json.dumps(config))
    assert import_task(adapter, base, NO_OPTIONS).terms.head.task == task


def test_options_of_other_tasks_are_refused_by_name(base_folder: Path, base: ImportBase, tmp_path: Path) -> None:
    model = AutoModelForQuestionAnswering.from_pretrained(base_folder, num_labels=2)
    get_peft_model(model, LoraConfig(task_type="QUESTION_ANS", target_modules=["query"])).save_pretrained(
        tmp_path / "q"
    )
    get_peft_model(
        AutoModel.from_pretrained(base_folder), LoraConfig(task_type="FEATURE_EXTRACTION", target_modules=["query"])
    ).save_pretrained(tmp_path / "v")
    found = import_task(tmp_path / "q", base, ImportOptions(impossible_answers=True, max_answer_tokens=3))
    assert found.terms.head.settings == {"impossible_answers": True, "max_answer_tokens": 3}
    assert import_task(tmp_path / "q", base, NO_OPTIONS).terms.head.settings == {}
    for folder, options, message in (
        ("q", ImportOptions(pooling="mean"), "--pooling is for tasks of embedding, and this one is of question-answ"),
        ("v", ImportOptions(pooling="mean", impossible_answers=True), "--impossible-answers is for tasks of question-"),
        ("v", ImportOptions(pooling="mean", max_answer_tokens=3), "--max-answer-tokens is for tasks of question-"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            import_task(tmp_path / folder, base, options)


def test_one_output_is_a_regression_or_a_reranker(base_folder: Path, base: ImportBase, tmp_path: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(base_folder, num_labels=1, ignore_mismatched_sizes=True)
    get_peft_model(model, LoraConfig(task_type="SEQ_CLS", target_modules=["query"])).save_pretrained(tmp_path)
    found = import_task(tmp_path, base, NO_OPTIONS).terms.head
    assert (found.task, found.labels) == ("regression", ("score",))
    assert import_task(tmp_path, base, ImportOptions(labels=("stars",))).terms.head.labels == ("stars",)
    assert import_task(tmp_path, base, ImportOptions(task="rerank")).terms.head.task == "rerank"
    with pytest.raises(InvalidArgument, match=r"--task multi-label does not fit .*: accepted: regression, rerank"):
        import_task(tmp_path, base, ImportOptions(task="multi-label"))


def test_lora_on_an_embedding_is_refused(base_folder: Path, base: ImportBase, tmp_path: Path) -> None:
    saved(base_folder, tmp_path, target_modules=["query", "word_embeddings"])
    with pytest.raises(Unsupported, match=r"'bert.embeddings.word_embeddings' is LoRA on an embedding, which tasks"):
        import_task(tmp_path, base, NO_OPTIONS)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"peft_type": "IA3"}, "peft_type is IA3; accepted is LORA"),
        ({"use_dora": True}, "DoRA scales whole columns"),
        ({"init_lora_weights": "pissa_niter_4"}, "changed the base's own weights"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is set"),
        ({"use_something_new": {"a": 1}}, "use_something_new is set, which plain LoRA does not have"),
        ({"layer_replication": [[0, 1]]}, "layer_replication is set"),
        ({"r": None}, "has no valid r and lora_alpha"),
        ({"r": 0}, "has no valid r and lora_alpha"),
        ({"alpha_pattern": {"(": 1}}, "has invalid patterns"),
        ({"bias": "some"}, "bias is 'some'; accepted: none, all, lora_only"),
    ],
)
def test_unsupported_options_are_refused(base: ImportBase, adapter: Path, changed: dict[str, Any], reason: str) -> None:
    edit(adapter, **changed)
    with pytest.raises(TidalError) as caught:
        import_task(adapter, base, NO_OPTIONS)
    assert reason in str(caught.value)


def test_a_dora_adapter_saved_by_peft_is_refused(base_folder: Path, base: ImportBase, tmp_path: Path) -> None:
    saved(base_folder, tmp_path, use_dora=True)
    with pytest.raises(Unsupported, match="DoRA"):
        import_task(tmp_path, base, NO_OPTIONS)


class TestTensors:
    def refused(self, base: ImportBase, folder: Path, tensors: dict[str, torch.Tensor]) -> str:
        save_file(tensors, folder / "adapter_model.safetensors")
        with pytest.raises(TidalError) as caught:
            import_task(folder, base, NO_OPTIONS)
        return str(caught.value)

    @pytest.fixture
    def tensors(self, adapter: Path) -> dict[str, torch.Tensor]:
        return load_file(adapter / "adapter_model.safetensors")

    def test_of_another_base_are_refused(
        self, base: ImportBase, adapter: Path, tensors: dict[str, torch.Tensor]
    ) -> None:
        name = "base_model.model.bert.encoder.layer.1.attention.self.query.lora_A.weight"
        assert "expected [rank, 32]" in self.refused(base, adapter, tensors | {name: torch.ones(4, 31)})

    def test_without_a_classifier_are_refused(
        self, base: ImportBase, adapter: Path, tensors: dict[str, torch.Tensor]
    ) -> None:
        left = {name: value for name, value in tensors.items() if "classifier" not in name}
        assert "it has no head of one linear layer" in self.refused(base, adapter, left)

    def test_of_unknown_layers_are_refused(
        self, base: ImportBase, adapter: Path, tensors: dict[str, torch.Tensor]
    ) -> None:
        name = "base_model.model.bert.encoder.layer.9.attention.self.query.lora_A.weight"
        reason = self.refused(base, adapter, tensors | {name: torch.ones(4, 32)})
        assert "not a linear layer of the base" in reason

    def test_that_replace_a_module_are_refused(
        self, base: ImportBase, adapter: Path, tensors: dict[str, torch.Tensor]
    ) -> None:
        name = "base_model.model.bert.pooler.dense.weight"
        assert "is trained as a whole" in self.refused(base, adapter, tensors | {name: torch.ones(32, 32)})

    def test_that_are_pickled_are_refused(
        self, base: ImportBase, adapter: Path, tensors: dict[str, torch.Tensor]
    ) -> None:
        (adapter / "adapter_model.safetensors").unlink()
        torch.save(tensors, adapter / "adapter_model.bin")
        with pytest.raises(InvalidArgument, match=r"pickled weights .* they can run code: save it again"):
            import_task(adapter, base, NO_OPTIONS)

    def test_that_are_damaged_are_refused(
        self, base: ImportBase, adapter: Path, tensors: dict[str, torch.Tensor]
    ) -> None:
        path = adapter / "adapter_model.safetensors"
        path.write_bytes(path.read_bytes()[:-10])
        with pytest.raises(InvalidArgument, match=r"adapter_model.safetensors cannot be read"):
            import_task(adapter, base, NO_OPTIONS)


def test_an_unknown_folder_is_refused_with_what_is_accepted(base: ImportBase, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot be imported as a task"):
        import_task(tmp_path, base, NO_OPTIONS)
    with pytest.raises(InvalidArgument, match="is not a folder"):
        import_task(tmp_path / "absent", base, NO_OPTIONS)
