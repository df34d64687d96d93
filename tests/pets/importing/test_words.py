"""Tasks of masked language models: their heads score words as the unmodified model does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model

from testing.models import make_tiny_classifier
from testing.small_base import MADE, same_terms
from tidal.errors import InvalidArgument, Unsupported
from tidal.pets.heads import computed
from tidal.pets.tasks.folder import add_task, load_task
from tidal.pets.terms import EncoderOutputs, Head
from tidal.tasks.stored import Storage
from tidal_builders.pets.base import base_layers
from tidal_builders.pets.encoder import read_encoder
from tidal_builders.pets.importing.imported import ImportBase, ImportOptions
from tidal_builders.pets.importing.recognise import import_task
from tidal_builders.pets.source import load_encoder

SMALL = {
    "vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48,
    "max_position_embeddings": 40,
}  # fmt: skip
DISTIL = {
    "vocab_size": 300, "dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 48, "max_position_embeddings": 40,
}  # fmt: skip
MODELS: dict[str, Callable[[], Any]] = {
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(hidden_act="gelu_new", **SMALL)),
    "bert_untied": lambda: transformers.BertForMaskedLM(transformers.BertConfig(tie_word_embeddings=False, **SMALL)),
    "roberta": lambda: transformers.RobertaForMaskedLM(transformers.RobertaConfig(hidden_act="relu", **SMALL)),
    "xlm_roberta": lambda: transformers.XLMRobertaForMaskedLM(transformers.XLMRobertaConfig(**SMALL)),
    "distilbert": lambda: transformers.DistilBertForMaskedLM(transformers.DistilBertConfig(**DISTIL)),
}
IDS = np.array([[2, 70, 4, 90, 4, 3], [2, 75, 80, 4, 91, 3], [2, 75, 80, 81, 82, 3]])
SPLADE = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.sparse_encoder.models.MLMTransformer"},
    {"idx": 1, "name": "1", "path": "1_Splade", "type": "sentence_transformers.sparse_encoder.models.SpladePooling"},
]


def save(folder: Path, name: str = "bert") -> Any:
    """Save a masked language model with random weights and a tokenizer; returns the model."""
    make_tiny_classifier(folder, layers=1, hidden=32)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(3)
        model = MODELS[name]().eval()
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.3)
    model.save_pretrained(folder)
    return model


def base_of(folder: Path) -> ImportBase:
    """The encoder of a saved model as the base of tasks."""
    return ImportBase(*base_layers(read_encoder(load_encoder(folder)[0])), str(folder), folder)


def scores(head: Head, model: Any) -> Any:
    """What a head computes for `IDS` from the hidden states of an unmodified encoder."""
    with torch.no_grad():
        hidden = model.base_model(torch.from_numpy(IDS)).last_hidden_state.numpy()
    loaded = head.loaded(model.get_input_embeddings().weight.detach().numpy())
    return computed(loaded, EncoderOutputs(hidden[:, 0], hidden), range(len(IDS)), np.full(len(IDS), 6), list(IDS))


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model(torch.from_numpy(IDS)).logits.numpy()


@pytest.mark.parametrize("name", MODELS)
def test_heads_of_a_checkpoint(tmp_path: Path, name: str) -> None:
    model = save(tmp_path / "model", name)
    base = base_of(tmp_path / "model")
    found = import_task(tmp_path / "model", base, ImportOptions())
    head = found.terms.head
    assert (found.kind, head.task, dict(found.terms.linear)) == ("bitfit", "fill-mask", {})
    assert head.tied == (name != "bert_untied")
    assert head.settings == {"mask_id": 4, "mask": "[MASK]", "max_masks": 8}
    got, wanted = scores(head, model).reshape(3, 8, -1), logits(model)
    np.testing.assert_allclose(got[0, :2], wanted[0, [2, 4]], atol=1e-4)
    np.testing.assert_allclose(got[1, :1], wanted[1, [3]], atol=1e-4)
    assert not got[0, 2:].any()
    assert not got[2].any()

    sparse = import_task(tmp_path / "model", base, ImportOptions(task="sparse-embedding")).terms.head
    np.testing.assert_allclose(scores(sparse, model), np.log1p(np.maximum(wanted, 0)).max(1), atol=1e-4)
    assert not sparse.settings


@pytest.mark.parametrize("name", ["bert", "bert_untied"])
def test_a_stored_task_is_the_same(tmp_path: Path, name: str) -> None:
    model = save(tmp_path / "model", name)
    base = base_of(tmp_path / "model")
    terms = import_task(tmp_path / "model", base, ImportOptions()).terms
    add_task(tmp_path / "tasks", "words", "bitfit", terms, base.layers, MADE)
    read = load_task(tmp_path / "tasks", "words", base.layers)
    assert same_terms(read.terms, terms)
    assert read.info.vocabulary == terms.head.vocabulary.form  # type: ignore[union-attr]
    words = 300 * 32 * 4
    assert (terms.bytes > words) == (name == "bert_untied")
    half = add_task(tmp_path / "tasks", "half", "bitfit", terms, base.layers, MADE, storage=Storage(True))
    np.testing.assert_allclose(scores(half.terms.head, model), scores(terms.head, model), atol=0.1)


@pytest.mark.parametrize(
    ("pooling", "activation"), [("max", "relu"), ("sum", "relu"), ("max", "log1p_relu"), ("sum", "log1p_relu")]
)
def test_the_pooling_of_sentence_transformers(tmp_path: Path, pooling: str, activation: str) -> None:
    model = save(tmp_path)
    (tmp_path / "modules.json").write_text(json.dumps(SPLADE))
    (tmp_path / "1_Splade").mkdir()
    config = {"pooling_strategy": pooling, "activation_function": activation}
    (tmp_path / "1_Splade/config.json").write_text(json.dumps(config))
    head = import_task(tmp_path, base_of(tmp_path), ImportOptions()).terms.head
    assert head.task == "sparse-embedding"
    weights = np.log1p(np.maximum(logits(model), 0))
    weights = np.log1p(weights) if activation == "log1p_relu" else weights
    wanted = weights.max(1) if pooling == "max" else weights.sum(1)
    np.testing.assert_allclose(scores(head, model), wanted, atol=1e-4)


def lora(base: Path, folder: Path, **options: Any) -> Any:
    """Save a LoRA of a masked language model by an unmodified peft; returns the merged model."""
    torch.manual_seed(5)
    model = transformers.AutoModelForMaskedLM.from_pretrained(base)
    made = get_peft_model(model, LoraConfig(**{"r": 3, "target_modules": ["query", "value"], **options}))
    with torch.no_grad():
        for weight in made.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight) * 0.1)
    made.save_pretrained(folder)
    return made.eval().merge_and_unload()


@pytest.mark.parametrize("options", [{}, {"modules_to_save": ["cls"]}])
def test_a_lora_of_a_masked_language_model(tmp_path: Path, options: dict[str, Any]) -> None:
    save(tmp_path / "model")
    base = base_of(tmp_path / "model")
    merged = lora(tmp_path / "model", tmp_path / "lora", **options)
    found = import_task(tmp_path / "lora", base, ImportOptions())
    assert (found.kind, found.terms.head.task) == ("lora", "fill-mask")
    assert set(found.terms.linear) == {f"encoder.layer.0.attention.self.{name}" for name in ("query", "value")}
    got = scores(found.terms.head, merged).reshape(3, 8, -1)
    np.testing.assert_allclose(got[0, :2], logits(merged)[0, [2, 4]], atol=1e-4)
    assert found.source is not None
    answers = found.source().answers([("a [MASK] film",), ("a film",)])
    assert [row.reshape(8, -1).any(1).tolist() for row in answers] == [[True, *[False] * 7], [False] * 8]


def test_refused_with_the_reason(tmp_path: Path) -> None:
    save(tmp_path / "model")
    base = base_of(tmp_path / "model")
    lora(tmp_path / "model", tmp_path / "lora")
    elsewhere = ImportBase(base.layers, base.info, str(tmp_path / "model"))
    moved = (tmp_path / "model").rename(tmp_path / "moved")
    with pytest.raises(
        InvalidArgument, match=r"a task of fill-mask reads the head of the adapter's base.*--base-model"
    ):
        import_task(tmp_path / "lora", elsewhere, ImportOptions())
    assert import_task(tmp_path / "lora", elsewhere, ImportOptions(base_model=moved)).terms.head.task == "fill-mask"
    for source in (moved, tmp_path / "lora"):
        with pytest.raises(InvalidArgument, match="--labels a,b: a task of fill-mask has no labels"):
            import_task(source, base, ImportOptions(labels=("a", "b"), base_model=moved))
        with pytest.raises(InvalidArgument, match="--impossible-answers is for tasks of question-answering"):
            import_task(source, base, ImportOptions(impossible_answers=True, base_model=moved))
    with pytest.raises(InvalidArgument, match=r"--task rerank does not fit .*fill mask: .*accepted: "):
        import_task(moved, base, ImportOptions(task="rerank"))
    with pytest.raises(InvalidArgument, match="--pooling is for tasks of embedding"):
        import_task(moved, base, ImportOptions(task="fill-mask", pooling="mean"))
    assert import_task(moved, base, ImportOptions(pooling="mean")).terms.head.task == "embedding"
    config = json.loads((moved / "tokenizer_config.json").read_text())
    config.pop("mask_token")
    (moved / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidArgument, match="has no mask token; fill-mask requires one"):
        import_task(moved, base, ImportOptions())


def test_another_token_for_masked_words(tmp_path: Path) -> None:
    save(tmp_path / "model")
    other = make_tiny_classifier(tmp_path / "other") / "tokenizer.json"
    content = json.loads(other.read_text())
    for token in content["added_tokens"]:
        token["id"] = {4: 5, 5: 4}.get(token["id"], token["id"])
    words = content["model"]["vocab"]
    swapped = {4: 5, 5: 4}
    content["model"]["vocab"] = {word: swapped.get(number, number) for word, number in words.items()}
    other.write_text(json.dumps(content))
    made = base_of(tmp_path / "model")
    base = ImportBase(made.layers, made.info, made.name, made.folder, other)
    with pytest.raises(InvalidArgument, match=r"\[MASK\], has the id 4, and in the base's tokenizer 5"):
        import_task(tmp_path / "model", base, ImportOptions())


def test_a_head_of_another_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "model")
    base = base_of(tmp_path / "model")
    monkeypatch.setattr("tidal_builders.pets.importing.vocabulary._READERS", {})
    with pytest.raises(Unsupported, match=r"BertForMaskedLM has a head of words that a task cannot store \(model type"):
        import_task(tmp_path / "model", base, ImportOptions())
