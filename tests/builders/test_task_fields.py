"""Fields of specs that a task does not use, what a reranker's files say, and the measures that decide about a build."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.sentence_models import add_sentence_files, make_embedding_model, make_tiny_encoder
from tidal.encoder_tasks.entries import TASKS
from tidal.errors import InvalidArgument, Unsupported
from tidal_builders.arlo.plan import plan_arlo
from tidal_builders.arlo.source import load_source
from tidal_builders.arlo.spec import ArloSpec
from tidal_builders.arlo.stages import ArloStages
from tidal_builders.arlo.verify import Comparison
from tidal_builders.encoder_tasks import measures
from tidal_builders.encoder_tasks.detect import choose_task
from tidal_builders.encoder_tasks.measures import MASKED_WORDS, SCORES, VECTORS, Measure
from tidal_builders.encoder_tasks.prepared import PrepareOptions
from tidal_builders.pets.importing.heads import rerank_settings
from tidal_builders.workspace import Workspace
from tidal_client.commands.infer_kinds import _KINDS

ONE = {"id2label": {"0": "LABEL_0"}}


def config_only(folder: Path, architecture: str, **config: Any) -> Path:
    """A source model of which only the configuration is read."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture], "model_type": "bert", **config}))
    return folder


def planned(folder: Path, task: str, **fields: Any) -> Any:
    config_only(folder / "m", "BertForSequenceClassification", **ONE)
    spec = ArloSpec.model_validate({"kind": "arlo", "name": "m", "model": "./m", "task": task, **fields})
    return plan_arlo(spec, folder / "repository", folder)


@pytest.mark.parametrize(
    ("field", "value", "tasks"),
    [
        ("pooling", "max", "embedding"),
        ("normalize", False, "embedding"),
        ("max_answer_tokens", 15, "question-answering"),
        ("impossible_answers", False, "question-answering"),
        ("labels", ["a"], "classification or multi-label or regression or token-classification"),
    ],
)
def test_a_field_of_another_task_is_refused(tmp_path: Path, field: str, value: Any, tasks: str) -> None:
    message = f"field '{field}' is for task {tasks}, and this model is built for rerank; remove it"
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        planned(tmp_path, "rerank", **{field: value})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"truncate": "stride"}, "the task rerank has no windows; accepted are true and false"),
        ({"stride": 3}, "'stride' is 3; it requires truncate: stride, which is not set"),
        ({"stride": 3, "truncate": True}, "'stride' is 3; it requires truncate: stride, which is not set"),
    ],
)
def test_long_texts_that_the_task_cannot_treat_are_refused(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        planned(tmp_path, "rerank", **fields)


def test_windows_have_at_most_half_of_the_longest_input_in_common(tmp_path: Path) -> None:
    """By the lengths of the spec before the model is loaded, else by the model's own limit, before anything is run."""
    make_embedding_model(tmp_path / "m", max_seq_length=40)
    make = partial(ArloSpec, kind="arlo", name="m", model="./m", truncate="stride")
    with pytest.raises(InvalidArgument, match="'stride' is 9; accepted are 0 to 8 tokens"):
        plan_arlo(make(lengths=(8, 16), stride=9), tmp_path / "repository", tmp_path)
    assert plan_arlo(make(lengths=(8, 16), stride=8), tmp_path / "repository", tmp_path).task == "embedding"
    for stride, refused in ((21, True), (20, False)):
        spec = make(stride=stride)
        plan = plan_arlo(spec, tmp_path / "repository", tmp_path)
        stages = ArloStages(spec, plan, Workspace(tmp_path / f"work{stride}"), lambda *_: None)
        if refused:
            with pytest.raises(InvalidArgument, match="'stride' is 21; accepted are 0 to 20 tokens"):
                stages.reference  # noqa: B018
        else:
            assert stages.source.max_length == 40


def test_auto_recognises_a_masked_language_model(tmp_path: Path) -> None:
    assert choose_task(config_only(tmp_path / "m", "BertForMaskedLM"), "auto", "arlo") == "fill-mask"


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (None, "sigmoid"),
        ("torch.nn.modules.activation.Sigmoid", "sigmoid"),
        ("torch.nn.modules.linear.Identity", "identity"),
        ("torch.nn.modules.activation.ReLU", None),
    ],
)
def test_a_score_is_the_function_of_the_logit_that_the_files_name(
    tmp_path: Path, function: str | None, expected: str | None
) -> None:
    folder = make_tiny_encoder(tmp_path / "m", "BertForSequenceClassification", **ONE)
    options = {"model_type": "CrossEncoder"} | ({} if function is None else {"activation_fn": function})
    add_sentence_files(folder, [("Transformer", {})], options=options)
    if expected is None:
        with pytest.raises(InvalidArgument, match=r"activation function torch.*ReLU; accepted are Identity, Sigmoid"):
            load_source(folder, "rerank", PrepareOptions())
        with pytest.raises(Unsupported, match=r"activation function torch.*ReLU; accepted are Sigmoid and Identity"):
            rerank_settings(None, folder)
        return
    settings = load_source(folder, "rerank", PrepareOptions()).prepared.settings
    assert settings == rerank_settings(None, folder) == {"activation": expected}
    logits = np.array([[-2.0], [0.5]], np.float32)
    scores = TASKS["rerank"].open_head(settings).batch({"logits": logits})["score"]
    wanted = logits if expected == "identity" else 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose(scores, wanted, rtol=1e-6)


def test_a_reranker_has_one_output(tmp_path: Path) -> None:
    folder = make_tiny_encoder(tmp_path / "m", "BertForSequenceClassification", id2label={0: "a", 1: "b"})
    with pytest.raises(InvalidArgument, match="has 2 outputs; a reranker has 1"):
        load_source(folder, "rerank", PrepareOptions())


def test_texts_are_lowercased_where_the_files_say_so(tmp_path: Path) -> None:
    """As sentence-transformers does before the tokenizer, also with a tokenizer that keeps the case."""
    folder = make_embedding_model(tmp_path / "m")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["normalizer"] = None
    (folder / "tokenizer.json").write_text(json.dumps(content))
    text = "Good Weather"
    for lower in (False, True):
        (folder / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": lower}))
        tokenizer = load_source(folder, "embedding", PrepareOptions()).tokenizer
        assert (tokenizer(text)["input_ids"] == tokenizer(text.lower())["input_ids"]) is lower


def comparison(measure: Measure, *, error: float = 0.0, agreement: float = 1.0) -> Comparison:
    errors = np.array([0.0, error])
    return Comparison(measure, np.array([3, 5]), errors, np.zeros(2), agreement)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("measure", [SCORES, VECTORS, MASKED_WORDS], ids=lambda each: each.agreement_name)
def test_engines_whose_answers_agree_too_little_are_not_published(measure: Measure, precision: Any) -> None:
    least = measure.least[precision]
    assert comparison(measure, agreement=least).shortfalls(precision, None) == []
    (clause,) = comparison(measure, agreement=least - 1e-3).shortfalls(precision, None)
    assert clause == measure.miss.format(least - 1e-3, least)
    assert "exceeds the tolerance" in comparison(measure, error=1e3).shortfalls(precision, None)[0]
    assert comparison(measure, error=0.5).shortfalls(precision, 0.5) == []
    assert len(comparison(measure, agreement=float("nan")).shortfalls(precision, None)) == 1


def test_a_manifest_records_the_measure_of_its_task() -> None:
    record = comparison(SCORES, error=0.25, agreement=0.97).verification("int8", 0.5)
    assert (record.agreements, record.argmax_agreement) == ({"spearman": 0.97}, None)
    assert (record.samples, record.max_abs_error, record.tolerance) == (2, 0.25, 0.5)
    record = comparison(measures.LABELS, agreement=0.5).verification("fp32", None)
    assert (record.agreements, record.argmax_agreement) == ({}, 0.5)


def test_shares_of_decisions_and_of_masked_words() -> None:
    got, wanted = [np.array([1.0, -1.0, 0.5, -0.1])], [np.array([2.0, 1.0, 0.1, -3.0])]
    assert measures.same_decisions(got, wanted) == 0.75
    words = np.zeros((measures.MAX_MASKS, 5), np.float32)
    words[0, 2], words[1, 4] = 3.0, 3.0  # the second mask is not compared
    other, same = words.copy(), words.copy()
    other[0, 1], same[1, 0] = 4.0, 4.0
    assert measures.same_words([words.ravel(), words.ravel()], [other.ravel(), same.ravel()]) == 0.5


def test_the_client_prints_every_task_s_answers() -> None:
    """Classes have a table of their own; all other tasks are a row of the kinds of responses."""
    shown = {name for kind in _KINDS for name in kind.outputs}
    for name, task in TASKS.items():
        assert "label" in {each.name for each in task.outputs} or shown & {each.name for each in task.outputs}, name


def edit(file: Path, **fields: Any) -> None:
    """Replace fields of a JSON file; None removes one."""
    content = {**json.loads(file.read_text()), **fields}
    file.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def test_labels_need_a_name_each(tmp_path: Path) -> None:
    folder = make_tiny_encoder(tmp_path / "m", "BertForSequenceClassification", id2label={0: "a", 1: "b"})
    edit(folder / "config.json", id2label={"0": "a", "2": "c"})
    with pytest.raises(InvalidArgument, match=r"no name for label 1 of 2; name all 2 labels in the spec"):
        load_source(folder, "classification", PrepareOptions())
    assert load_source(folder, "classification", PrepareOptions(labels=("a", "b"))).prepared.labels == ("a", "b")


def test_masked_words_need_a_mask_token(tmp_path: Path) -> None:
    folder = make_tiny_encoder(tmp_path / "m", "BertForMaskedLM")
    edit(folder / "tokenizer_config.json", mask_token=None)
    with pytest.raises(InvalidArgument, match="has no mask token; fill-mask requires one: set mask_token"):
        load_source(folder, "fill-mask", PrepareOptions())


def test_dense_layers_that_cannot_be_served_are_refused(tmp_path: Path) -> None:
    folder = make_embedding_model(tmp_path / "m", dense=16)
    with pytest.raises(InvalidArgument, match="has dense layers after its own pooling, mean; remove the field"):
        load_source(folder, "embedding", PrepareOptions(pooling="cls"))
    (config,) = folder.glob("*_Dense/config.json")
    edit(config, activation_function="torch.nn.modules.activation.Softsign")
    with pytest.raises(InvalidArgument, match=r"activation function torch\S*Softsign; accepted are"):
        load_source(folder, "embedding", PrepareOptions())
