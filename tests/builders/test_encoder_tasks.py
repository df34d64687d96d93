"""Tasks of source models: recognised from files, and engines' graphs compared with the definitions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from testing.sentence_models import add_sentence_files, make_embedding_model, make_tiny_encoder
from tidal.arlo.manifest import ArloManifest
from tidal.encoder_tasks import TASKS
from tidal.errors import InvalidArgument
from tidal.repository.config import read_config
from tidal_builders.arlo.config import config_pbtxt
from tidal_builders.arlo.plan import plan_arlo
from tidal_builders.arlo.source import Exported, load_source
from tidal_builders.arlo.spec import ArloSpec
from tidal_builders.encoder_tasks.detect import choose_task
from tidal_builders.encoder_tasks.entries import BUILD_TASKS
from tidal_builders.encoder_tasks.measures import SCORES, VECTORS, cosine_error
from tidal_builders.encoder_tasks.pooling import POOLS, Pooling
from tidal_builders.encoder_tasks.prepared import PrepareOptions
from tidal_builders.encoder_tasks.sentence_files import POOLINGS

ONE = {"id2label": {"0": "LABEL_0"}}
CROSS = {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"}
TEXTS = ["good", "please book a flight to the city", "the weather is not bad today but the food was awful"]


def test_every_served_task_can_be_built() -> None:
    assert set(TASKS) == set(BUILD_TASKS)
    for task in BUILD_TASKS.values():
        assert callable(task.load_measure().error)
    assert set(POOLINGS) == set(POOLS)


def folder_of(path: Path, architecture: str | None, files: dict[str, Any], **config: Any) -> Path:
    named = {"architectures": [architecture]} if architecture else {}
    (path / "config.json").write_text(json.dumps({**named, "model_type": "bert", **config}))
    for name, content in files.items():
        (path / name).write_text(json.dumps(content))
    return path


def modules(*kinds: str) -> list[dict[str, Any]]:
    return [{"idx": n, "path": "", "type": f"sentence_transformers.models.{kind}"} for n, kind in enumerate(kinds)]


SEQUENCE, MASKED = "BertForSequenceClassification", "BertForMaskedLM"


@pytest.mark.parametrize(
    ("architecture", "files", "config", "task"),
    [
        (SEQUENCE, {}, {}, "classification"),
        (SEQUENCE, {}, {"problem_type": "multi_label_classification"}, "multi-label"),
        (SEQUENCE, {}, {"problem_type": "regression", **ONE}, "regression"),
        (SEQUENCE, {"config_sentence_transformers.json": CROSS}, ONE, "rerank"),
        (SEQUENCE, {}, {**ONE, "sbert_ce_default_activation_function": "torch.nn.Sigmoid"}, "rerank"),
        (SEQUENCE, {}, {**ONE, "sentence_transformers": {"version": "4.1.0"}}, "rerank"),
        ("BertModel", {"modules.json": modules("Transformer", "Pooling")}, {}, "embedding"),
        (MASKED, {"modules.json": modules("Transformer", "Pooling")}, {}, "embedding"),
        ("Qwen3ForCausalLM", {"modules.json": modules("Transformer", "Pooling")}, {}, "embedding"),
        (MASKED, {"modules.json": modules("MLMTransformer", "SpladePooling")}, {}, "sparse-embedding"),
        ("BertForTokenClassification", {}, {}, "token-classification"),
        (None, {}, {}, "classification"),
    ],
)
def test_auto_recognises(
    tmp_path: Path, architecture: str | None, files: dict[str, Any], config: dict[str, Any], task: str
) -> None:
    assert choose_task(folder_of(tmp_path, architecture, files, **config), "auto", "arlo") == task


@pytest.mark.parametrize(
    ("architecture", "config", "message"),
    [
        (SEQUENCE, ONE, r"leave it open \(found BertForSequenceClassification, num_labels 1\).*regression.* or rerank"),
        ("BertModel", {}, r"leave it open \(found BertModel\); set task to embedding \(a vector for each text\)$"),
        ("GPT2LMHeadModel", {}, "kind 'arlo' cannot serve .*: it is a decoder"),
    ],
)
def test_auto_refuses_what_the_files_leave_open(
    tmp_path: Path, architecture: str, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        choose_task(folder_of(tmp_path, architecture, {}, **config), "auto", "arlo")


@pytest.mark.parametrize("task", TASKS)
def test_the_config_declares_the_outputs_and_settings_of_the_task(tmp_path: Path, task: str) -> None:
    entry, spec = TASKS[task], ArloSpec(kind="arlo", name="m", model="./m")
    settings = {"prompts": {'"a\\b"': "ü\n: "}, "activation": "sigmoid"}
    manifest = ArloManifest.model_construct(task=task, settings=settings, extra_outputs=())
    (tmp_path / "config.pbtxt").write_text(config_pbtxt(spec, manifest, None))
    config = read_config(tmp_path)
    declared = {each["name"]: (each["data_type"], [int(n) for n in each["dims"]]) for each in config["output"]}
    assert declared == {
        **{output.name: (output.data_type, list(output.dims)) for output in entry.outputs},
        "max_length": ("TYPE_INT32", [1]),
        "input_tokens": ("TYPE_INT32", [1]),
    }
    assert ("text_pair" in {each["name"] for each in config["input"]}) == (entry.pairs != "refused")
    assert config["parameters"]["task"]["string_value"] == task
    assert json.loads(config["parameters"]["task_settings"]["string_value"]) == settings


def test_a_named_task_is_checked(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, SEQUENCE, {}, **ONE)
    assert choose_task(folder, "rerank", "arlo") == "rerank"
    with pytest.raises(InvalidArgument, match="cannot be built for embedding: it is a cross-encoder"):
        choose_task(folder, "embedding", "arlo")


def by_definition(mode: str, vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Pool the vectors of one text, [length, width], by sentence-transformers' definition."""
    length = len(vectors)
    weights = np.arange(1, length + 1)[:, None]
    return {
        "cls": vectors[0],
        "max": vectors.max(0),
        "mean": vectors.mean(0),
        "mean_sqrt_len_tokens": vectors.sum(0) / np.sqrt(length),
        "weightedmean": (vectors * weights).sum(0) / weights.sum(),
        "lasttoken": vectors[-1],
    }[mode]


def test_poolings_ignore_padding() -> None:
    draw = np.random.default_rng(0)
    vectors, lengths = draw.normal(size=(3, 9, 5)).astype(np.float32), (9, 4, 1)
    mask = np.array([[1] * length + [0] * (9 - length) for length in lengths])
    for modes in [(mode,) for mode in POOLS] + [("cls", "mean")]:
        got = Pooling(modes)(torch.from_numpy(vectors), torch.from_numpy(mask)).numpy()
        for row, length in enumerate(lengths):
            wanted = np.concatenate([by_definition(mode, vectors[row, :length]) for mode in modes])
            np.testing.assert_allclose(got[row], wanted, rtol=1e-5, atol=1e-6)


def padded(source: Any) -> dict[str, torch.Tensor]:
    found = source.tokenizer(TEXTS, padding=True, return_tensors="pt")
    return {name: found[name] for name in ("input_ids", "attention_mask", "token_type_ids")}


def test_dense_layers_and_normalisation_are_in_the_graph(tmp_path: Path) -> None:
    folder = make_embedding_model(tmp_path / "m", pooling="mean", dense=16, max_seq_length=40)
    source = load_source(folder, "embedding", PrepareOptions())
    assert (source.max_length, source.prepared.width, source.prepared.settings["normalized"]) == (40, 16, True)
    with torch.inference_mode():
        got = Exported(source, attention=False)(**padded(source))["embedding"].numpy()
        dense = source.prepared.tail.layers[0].linear
        for row, text in enumerate(TEXTS):
            hidden = source.model(**source.tokenizer(text, return_tensors="pt")).last_hidden_state[0].numpy()
            wanted = np.tanh(dense.weight.numpy() @ hidden.mean(0) + dense.bias.numpy())
            np.testing.assert_allclose(got[row], wanted / np.linalg.norm(wanted), atol=1e-5)


def test_the_spec_overrides_pooling_and_normalisation(tmp_path: Path) -> None:
    folder = make_embedding_model(tmp_path / "m", pooling="mean")
    settings = load_source(folder, "embedding", PrepareOptions(pooling="cls", normalize=False)).prepared.settings
    assert (settings["pooling"], settings["normalized"]) == (["cls"], False)
    bare = make_tiny_encoder(tmp_path / "bare", "BertModel")
    assert load_source(bare, "embedding", PrepareOptions(pooling="max")).prepared.settings["pooling"] == ["max"]
    with pytest.raises(InvalidArgument, match=r"field .pooling.: .* has no modules.json that says how to pool"):
        load_source(bare, "embedding", PrepareOptions())


OWN = {"prompts": {"query": "q: ", "document": "d: "}, "default_prompt_name": "query", "similarity_fn_name": "dot"}


@pytest.mark.parametrize(
    ("given", "prompts", "default", "similarity"),
    [
        ({}, OWN["prompts"], "query", "dot"),
        ({"default_prompt": "document"}, OWN["prompts"], "document", "dot"),
        ({"prompts": {"query": "Q "}}, {"query": "Q "}, "query", "dot"),
        ({"prompts": {"other": "o "}, "similarity": "cosine"}, {"other": "o "}, None, "cosine"),
        ({"prompts": {"other": "o "}, "default_prompt": "other"}, {"other": "o "}, "other", "dot"),
        ({"prompts": {}}, {}, None, "dot"),
    ],
)
def test_the_spec_overrides_prompts_and_similarity(
    tmp_path: Path, given: dict[str, Any], prompts: dict[str, str], default: str | None, similarity: str
) -> None:
    folder = make_embedding_model(tmp_path / "m", options=OWN)
    settings = load_source(folder, "embedding", PrepareOptions(**given)).prepared.settings
    assert (settings["prompts"], settings["default_prompt"]) == (prompts, default)
    assert settings["similarity"] == similarity


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"default_prompt": "queri"}, "field 'default_prompt': unknown prompt 'queri': did you mean 'query'"),
        ({"prompts": {}, "default_prompt": "query"}, "'query': there are no prompts; name some in field 'prompts'"),
        ({"prompts": {"a": "b"}, "default_prompt": "query"}, "unknown prompt 'query': accepted: a"),
    ],
)
def test_an_unknown_default_prompt_is_refused_before_the_model_is_loaded(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    make_embedding_model(tmp_path / "m", options=OWN)
    spec = ArloSpec(kind="arlo", name="m", model="./m", **fields)
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        plan_arlo(spec, tmp_path / "repository", tmp_path)


@pytest.mark.parametrize("field", [{"prompts": {}}, {"default_prompt": "query"}, {"similarity": "dot"}])
def test_fields_of_embeddings_are_refused_for_other_tasks(tmp_path: Path, field: dict[str, Any]) -> None:
    (tmp_path / "m").mkdir()
    folder_of(tmp_path / "m", SEQUENCE, {}, **ONE)
    spec = ArloSpec(kind="arlo", name="m", model="./m", task="rerank", **field)
    name = next(iter(field))
    with pytest.raises(InvalidArgument, match=f"field '{name}' is for task embedding, and this model is built for rer"):
        plan_arlo(spec, tmp_path / "repository", tmp_path)


def test_sparse_weights_are_the_largest_logarithms(tmp_path: Path) -> None:
    folder = make_tiny_encoder(tmp_path / "m", MASKED)
    add_sentence_files(folder, [("MLMTransformer", {}), ("SpladePooling", {"pooling_strategy": "sum"})])
    for task_folder, pool in ((folder, np.sum), (make_tiny_encoder(tmp_path / "plain", MASKED), np.max)):
        source = load_source(task_folder, "sparse-embedding", PrepareOptions())
        with torch.inference_mode():
            got = Exported(source, attention=False)(**padded(source))["weights"].numpy()
            for row, text in enumerate(TEXTS):
                logits = source.model(**source.tokenizer(text, return_tensors="pt")).logits[0].numpy()
                np.testing.assert_allclose(got[row], pool(np.log1p(np.maximum(logits, 0)), 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "modules.json",
            modules("Transformer", "Pooling", "LSTM"),
            "module LSTM after its pooling; accepted are Dense",
        ),
        ("modules.json", modules("CLIPModel"), "modules CLIPModel; accepted are a Transformer"),
        ("modules.json", [{"idx": 0}], "modules.json is not a list of modules"),
        ("modules.json", [{"idx": 0, "path": "../x", "type": "Transformer"}], "names the folder '../x'"),
        ("1_Pooling/config.json", {"pooling_mode": "median"}, "pooling mode 'median'; accepted are cls"),
        ("1_Pooling/config.json", {"include_prompt": False}, "include_prompt false"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "tanimoto"}, "similarity_fn_name 'tanimoto'"),
        ("config_sentence_transformers.json", {"prompts": {"a": 1}}, "accepted are texts by name"),
        ("config_sentence_transformers.json", {"default_prompt_name": "x"}, "default_prompt_name 'x'"),
    ],
)
def test_files_that_cannot_be_served_are_refused(tmp_path: Path, file: str, content: Any, message: str) -> None:
    folder = make_embedding_model(tmp_path / "m")
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(InvalidArgument, match=message):
        load_source(folder, "embedding", PrepareOptions())


def test_measures_detect_differences() -> None:
    draw = np.random.default_rng(1)
    rows = [draw.normal(size=8) for _ in range(20)]
    close = [row + 1e-6 * draw.normal(size=8) for row in rows]
    assert max(map(cosine_error, close, rows)) < VECTORS.tolerance["fp32"]
    assert VECTORS.agreement(close, rows) > 0.9999
    assert VECTORS.agreement(rows[::-1], rows) < VECTORS.least["int8"]
    assert cosine_error(-rows[0], rows[0]) == pytest.approx(2)
    assert cosine_error(rows[0] * np.nan, rows[0]) == float("inf")
    assert SCORES.error(np.array([np.nan]), np.array([0.0])) == float("inf")
    assert SCORES.agreement([-row for row in rows], rows) == 0


def test_the_measure_of_entities_is_their_f1() -> None:
    labels = ("O", "B-PER", "I-PER", "B-LOC")
    measure = BUILD_TASKS["token-classification"].load_measure(labels)

    def logits(*names: str) -> np.ndarray[Any, Any]:
        return 5.0 * np.eye(4, dtype=np.float32)[[labels.index(name) for name in names]]

    truth = [logits("B-PER", "I-PER", "O", "B-LOC"), logits("O", "B-LOC")]
    assert measure.agreement_name == "entity_f1"
    assert measure.agreement(truth, truth) == 1
    # The first person ends a token early: one of three entities is missed, and one is found too many.
    assert measure.agreement([logits("B-PER", "O", "O", "B-LOC"), truth[1]], truth) == pytest.approx(2 / 3)
    # One of three is missed: precision 1, recall 2/3.
    assert measure.agreement([truth[0], logits("O", "O")], truth) == pytest.approx(0.8)
    outside = [logits("O", "O")]
    assert measure.agreement(outside, outside) == 1
    tokens = BUILD_TASKS["token-classification"].load_measure()
    assert tokens.agreement([truth[0], logits("O", "O")], truth) == pytest.approx(5 / 6)


def test_the_measure_of_answers_is_the_best_span() -> None:
    measure, draw = BUILD_TASKS["question-answering"].load_measure(), np.random.default_rng(4)
    rows = [draw.normal(size=(40, 2)) for _ in range(30)]

    def best(logits: np.ndarray[Any, Any]) -> tuple[int, int]:
        spans = [(first, last) for first in range(40) for last in range(first, min(40, first + 15))]
        return max(spans, key=lambda span: logits[span[0], 0] + logits[span[1], 1])

    other = [row + draw.normal(size=row.shape) * 0.5 for row in rows]
    share = np.mean([best(a) == best(b) for a, b in zip(rows, other, strict=True)])
    assert 0 < share < 1
    assert measure.agreement(other, rows) == pytest.approx(share)
    assert measure.agreement(rows, rows) == 1
