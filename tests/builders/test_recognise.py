"""Recognition of source models that an unmodified transformers saved, and the errors of builders that refuse them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import BertConfig

from tests.tabi.builders.command import tidal_build
from tidal.errors import InvalidArgument
from tidal.repository.entries import ModelEntry
from tidal_builders.foreign.recognise import DECODERS, ENCODERS, SINGLE_LABEL, SINGLE_OUTPUT, recognise, require

SMALL: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
}  # fmt: skip
LABELS = {"id2label": {0: "a", 1: "b", 2: "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}
# Architecture and configuration of a saved model, by the task that is recognised.
SAVED: dict[str, tuple[str, Any]] = {
    "classification": ("BertForSequenceClassification", BertConfig(**SMALL, **LABELS)),
    "regression": ("BertForSequenceClassification", BertConfig(**SMALL, num_labels=1)),
    "multi_label": (
        "BertForSequenceClassification",
        BertConfig(**SMALL, **LABELS, problem_type="multi_label_classification"),
    ),
    "token_classification": ("BertForTokenClassification", BertConfig(**SMALL, **LABELS)),
    "question_answering": ("BertForQuestionAnswering", BertConfig(**SMALL)),
    "multiple_choice": ("BertForMultipleChoice", BertConfig(**SMALL)),
    "next_sentence": ("BertForNextSentencePrediction", BertConfig(**SMALL)),
    "fill_mask": ("BertForMaskedLM", BertConfig(**SMALL)),
    "encoder": ("BertModel", BertConfig(**SMALL)),
    "text_generation": (
        "GPT2LMHeadModel",
        transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=16),
    ),
    "seq2seq": (
        "T5ForConditionalGeneration",
        transformers.T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2),
    ),
    "vision": (
        "ViTForImageClassification",
        transformers.ViTConfig(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            image_size=16,
            patch_size=8,
        ),
    ),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of each task, each saved by transformers."""
    folder = tmp_path_factory.mktemp("models")
    for task, (architecture, config) in SAVED.items():
        getattr(transformers, architecture)(config).save_pretrained(folder / task)
    transformers.BertModel(BertConfig(**SMALL)).save_pretrained(folder / "embedding")
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    (folder / "embedding/modules.json").write_text(json.dumps(modules))
    (folder / "adapter").mkdir()
    (folder / "adapter/adapter_config.json").write_text('{"peft_type": "LORA"}')
    (folder / "gguf").mkdir()
    (folder / "gguf/model.gguf").touch()
    (folder / "timm").mkdir()
    (folder / "timm/config.json").write_text('{"architecture": "vit_tiny_patch16_224", "num_classes": 10}')
    (folder / "unknown").mkdir()
    return folder


@pytest.mark.parametrize("task", [*SAVED, "embedding", "adapter", "gguf", "timm", "unknown"])
def test_a_folder_is_recognised(models: Path, task: str) -> None:
    assert recognise(models / task).task == task


@pytest.mark.parametrize(
    ("config", "task"),
    [
        ({"architectures": ["BertForSequenceClassification"], "problem_type": "regression"}, "regression"),
        ({"architectures": ["BertForSequenceClassification"], "num_labels": 1}, "regression"),
        ({"architectures": ["BertForSequenceClassification"]}, "classification"),
        ({"architectures": ["GPT2Model"], "model_type": "gpt2"}, "text_generation"),
        ({"architectures": ["BartModel"], "model_type": "bart", "is_encoder_decoder": True}, "seq2seq"),
        ({"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper"}, "audio"),
        ({"architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {"width": 1}}, "multimodal"),
        ({"architectures": ["Novel"]}, "unknown"),
        ({"model_type": "bert"}, "unknown"),
        ({"problem_type": "multi_label_classification"}, "multi_label"),
    ],
)
def test_fields_of_the_configuration_decide(tmp_path: Path, config: dict[str, Any], task: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert recognise(tmp_path).task == task


def test_the_sets_of_accepted_tasks_are_consistent() -> None:
    assert SINGLE_LABEL < SINGLE_OUTPUT < ENCODERS
    assert not DECODERS & ENCODERS - {"unknown"}


@pytest.mark.parametrize(
    ("kind", "task", "message"),
    [
        ("arlo", "multiple_choice", "a multiple-choice model.*choices are not served yet"),
        ("arlo", "text_generation", "a decoder: it generates text.*GPT2LMHeadModel.*kind 'flover' serves decoders"),
        ("arlo", "seq2seq", "a sequence-to-sequence model.*T5ForConditionalGeneration"),
        ("arlo", "vision", "a vision model.*kind 'otas' serves"),
        ("arlo", "adapter", r"an adapter \(peft or AdapterHub\) and no model.*`tidal tasks add`"),
        ("pets", "text_generation", "a decoder.*kind 'flover' serves decoders"),
        ("pets", "seq2seq", "a sequence-to-sequence model"),
        ("flover", "classification", "a text classifier that gives each text one label.*kinds 'arlo' and 'tabi'"),
        ("flover", "fill_mask", "a pre-trained fill-mask model"),
        ("flover", "seq2seq", "a sequence-to-sequence model"),
        ("otas", "classification", "a text classifier"),
        ("otas", "vision", "a vision model in transformers' format"),
    ],
)
def test_the_error_of_a_refused_model_names_its_task(
    models: Path, tmp_path: Path, kind: str, task: str, message: str
) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"kind: {kind}\nname: model\nmodel: {models / task}\n")
    done = tidal_build(spec, "--repository", tmp_path / "r")
    assert done.code == 2
    with pytest.raises(InvalidArgument, match=f"kind '{kind}' cannot serve .*: it is {message}"):
        raise InvalidArgument(" ".join(done.stderr.split()))
    assert ModelEntry(tmp_path / "r/model").versions() == []


@pytest.mark.parametrize("task", ["token_classification", "multi_label", "fill_mask", "embedding", "regression"])
def test_encoders_of_other_tasks_can_be_bases(models: Path, task: str) -> None:
    assert require(models / task, ENCODERS, "pets").task == task
