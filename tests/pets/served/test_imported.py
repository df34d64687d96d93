"""Tasks imported by the command from files that transformers, peft and AdapterHub's library saved, and served."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModel,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from testing.hub import hub_environment, running_hub
from testing.pets import Base
from testing.servers import RunningServer
from testing.task_heads import answer_or_none
from tests.pets.served.conftest import Served
from tests.pets.served.saved_sources import (
    KINDS,
    LABELS,
    TEXTS,
    Source,
    add,
)
from tidal.pets.terms import FloatArray
from tidal_client import Client

pytestmark = pytest.mark.server

SAVED = Path(__file__).parents[1] / "importing/adapterhub_saved"


@dataclass(frozen=True)
class Peft:
    """A LoRA for one task: how peft makes it, the head that it becomes, options of the command, and its output."""

    model: Any
    task_type: str
    head: str
    options: tuple[str, ...] = ()
    output: str = "logits"
    sizes: int | None = None


PEFT = {
    "tokens": Peft(AutoModelForTokenClassification, "TOKEN_CLS", "token-classification"),
    "stars": Peft(AutoModelForSequenceClassification, "SEQ_CLS", "regression", sizes=1),
    "relevance": Peft(AutoModelForSequenceClassification, "SEQ_CLS", "rerank", ("--task", "rerank"), sizes=1),
    "vectors": Peft(AutoModel, "FEATURE_EXTRACTION", "embedding", ("--pooling", "lasttoken"), "embedding"),
}


@pytest.mark.parametrize("name", PEFT)
def test_answers_equal_those_of_peft(server: RunningServer, base: Base, tmp_path: Path, name: str) -> None:
    made = PEFT[name]
    sizes = {} if made.sizes is None else {"num_labels": made.sizes, "ignore_mismatched_sizes": True}
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(6)
        model = made.model.from_pretrained(base.source, **sizes)
        lora = get_peft_model(model, LoraConfig(task_type=made.task_type, r=4, target_modules=["query", "value"]))
        for weight in lora.parameters():
            if weight.requires_grad:
                weight.copy_(torch.randn_like(weight) * 0.2)
    lora.eval().save_pretrained(tmp_path)
    options = ["--base-model", base.source, *made.options]
    added = add(server.repository, "base", tmp_path, f"peft-{name}", "--json", *options)
    assert added.exit_code == 0, added.output
    record = json.loads(added.stdout)
    assert (record["kind"], record["head"]) == ("lora", made.head)
    assert record["provenance"]["answers"]["agreement"] > 0.9999
    pairs = made.head == "rerank"
    for text, pair in itertools.pairwise(TEXTS):
        inputs = {"text_input": np.array([[text.encode()]], object)}
        if pairs:
            inputs["text_pair"] = np.array([[pair.encode()]], object)
        with Client(f"grpc://{server.grpc}") as client:
            found = client.infer("base", inputs, task=f"peft-{name}")[made.output][0]
        encoded = base.tokenizer(text, pair if pairs else None, return_tensors="pt")
        with torch.inference_mode():
            outputs = lora(**encoded)
        if made.head == "embedding":
            last = outputs.last_hidden_state[0, -1]
            wanted = last / last.norm()
        else:
            wanted = outputs.logits[0]
        np.testing.assert_allclose(found, wanted.numpy(), atol=1e-4)


def reader(base: Base, folder: Path) -> Any:
    """Save a LoRA adapter that answers questions, and return its model."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(8)
        model = AutoModelForQuestionAnswering.from_pretrained(base.source, num_labels=2)
        lora = get_peft_model(model, LoraConfig(task_type="QUESTION_ANS", r=4, target_modules=["query", "value"]))
        for weight in lora.parameters():
            if weight.requires_grad:
                weight.copy_(torch.randn_like(weight) * 0.2)
    lora.eval().save_pretrained(folder)
    return lora


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_spans_equal_those_of_peft(server: RunningServer, base: Base, tmp_path: Path, protocol: str) -> None:
    """peft's own class for answers drops token types, in training too."""
    lora = reader(base, tmp_path)
    name = f"peft-spans-{protocol}"
    added = add(server.repository, "base", tmp_path, name, "--json", "--base-model", base.source)
    assert added.exit_code == 0, added.output
    record = json.loads(added.stdout)
    assert (record["kind"], record["head"], record["token_types"]) == ("lora", "question-answering", False)
    assert record["provenance"]["answers"]["max_error"] < 1e-4
    assert any("without token types" in note for note in record["provenance"]["notes"])
    with Client(f"{protocol}://{getattr(server, protocol)}") as client:
        # Words of many tokens, as the others have, are answers by more spans than the served sum of 12.
        for question, context in itertools.pairwise(TEXTS[:6]):
            encoded = base.tokenizer(question, context, return_tensors="pt")
            with torch.inference_mode():
                outputs, typed = lora(**encoded), lora.base_model(**encoded)
            values, others = (
                torch.stack([each.start_logits[0], each.end_logits[0]], dim=1).numpy() for each in (outputs, typed)
            )
            assert np.abs(values - others).max() > 1e-3  # token types make a difference
            place = answer_or_none(values, encoded, context, impossible=False)
            assert place is not None
            answer = client.answer("base", question, context, task=name)
            assert (answer.start, answer.end, answer.text) == (*place, context[slice(*place)])


def test_imported_questions_may_have_no_answer(server: RunningServer, base: Base, tmp_path: Path) -> None:
    """The options of the command decide that an empty answer competes, and how long an answer may be."""
    lora, wanted = reader(base, tmp_path), []
    base_model = ("--base-model", base.source, "--json")
    for name, options in (("short", ("--max-answer-tokens", "2")), ("unsure", ("--impossible-answers",))):
        added = add(server.repository, "base", tmp_path, name, *base_model, *options)
        assert added.exit_code == 0, added.output
    with Client(f"grpc://{server.grpc}") as client:
        for question, context in itertools.product(TEXTS[:4], TEXTS[4:]):
            encoded = base.tokenizer(question, context, return_tensors="pt")
            with torch.inference_mode():
                outputs = lora(**encoded)
            values = torch.stack([outputs.start_logits[0], outputs.end_logits[0]], dim=1).numpy()
            short = client.answer("base", question, context, task="short")
            assert (short.start, short.end) == answer_or_none(values, encoded, context, 2, impossible=False)
            wanted.append(answer_or_none(values, encoded, context))
            answer = client.answer("base", question, context, task="unsure")
            assert (answer.start, answer.end) == (wanted[-1] or (0, 0)), (question, context)
            assert answer.text == ("" if wanted[-1] is None else context[slice(*wanted[-1])])
    assert {each is None for each in wanted} == {True, False}


@pytest.fixture
def server(served: Served) -> RunningServer:
    return served.server


def answers_of(
    server: RunningServer, model: str, task: str, texts: Sequence[str], output: str = "logits"
) -> FloatArray:
    inputs = {"text_input": np.array([[text.encode()] for text in texts], object)}
    with Client(f"grpc://{server.grpc}") as client:
        return client.infer(model, inputs, task=task)[output]


@pytest.mark.parametrize(
    ("name", "with_data"),
    [("full", False), ("full", True), ("sparse", False), ("bitfit", True), ("masks", False), ("lora", True)],
)
def test_answers_equal_those_of_the_unmodified_model(
    server: RunningServer, sources: dict[str, Source], tmp_path: Path, name: str, with_data: bool
) -> None:
    source, (kind, options) = sources[name], KINDS[name]
    task = f"{name}_{with_data}"
    given = ("--data", source.data(tmp_path / "data.tsv")) if with_data else ()
    added = add(server.repository, "base", source.folder, task, "--json", *options, *given)
    assert added.exit_code == 0, added.output
    record = json.loads(added.stdout)
    assert (record["kind"], record["labels"]) == (kind, list(LABELS))
    held = record["provenance"]["answers"]
    assert (held["labels"], held["clear_labels"]) == (1, 1)
    assert held["max_error"] < 1e-4
    kept = record["provenance"]["accuracy"]
    assert kept == ({"rows": len(TEXTS), "accuracy": 1, "source_accuracy": 1} if with_data else None)
    np.testing.assert_allclose(answers_of(server, "base", task, TEXTS), source.logits, atol=1e-4)


@pytest.mark.slow
def test_a_task_of_the_hub_is_downloaded_and_served(
    server: RunningServer, sources: dict[str, Source], tmp_path: Path
) -> None:
    """In a process of its own: the hub's library reads its address once."""
    command_line = [sys.executable, "-m", "tidal_client.main", "tasks", "add", "base", "tiny/hub-lora"]
    command_line += ["--repository", str(server.repository), *KINDS["lora"][1]]
    with running_hub("tiny/hub-lora", sources["lora"].folder) as (endpoint, asked):
        environment = hub_environment(tmp_path, endpoint)
        added = subprocess.run(command_line, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert added.returncode == 0, added.stderr
    assert "added task 'hub-lora' to base" in added.stdout
    assert any(each.startswith("GET") and each.endswith("adapter_model.safetensors") for each in asked)
    np.testing.assert_allclose(answers_of(server, "base", "hub-lora", TEXTS), sources["lora"].logits, atol=1e-4)


# Adapters with the task that their head answers, options of the command, and the output that the answers are made of.
HUB_TASKS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "houlsby": ("classification", (), "logits"),
    "pooled": ("classification", (), "logits"),
    "plain": ("classification", (), "logits"),
    "pfeiffer": ("classification", (), "logits"),
    "both": ("classification", (), "logits"),
    "regression": ("regression", (), "logits"),
    "multi_label": ("multi-label", (), "logits"),
    "tagging": ("token-classification", (), "logits"),
    "plain_tokens": ("token-classification", (), "logits"),
    "headless": ("embedding", ("--task", "embedding", "--pooling", "mean"), "embedding"),
}


@pytest.mark.parametrize(("name", "with_data"), [*((name, False) for name in HUB_TASKS), ("pooled", True)])
def test_answers_equal_those_of_adapterhubs_library(
    server: RunningServer, tmp_path: Path, name: str, with_data: bool
) -> None:
    golden, (head, given, output) = json.loads((SAVED / "answers.json").read_text()), HUB_TASKS[name]
    values = [np.asarray(each) for each in golden["logits"][name]]
    options = ["--base-model", str(SAVED / "base"), *given]
    if with_data:
        rows = [f"{text}\t{each.argmax()}" for text, each in zip(golden["texts"], values, strict=True)]
        (tmp_path / "data.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
        options += ["--data", str(tmp_path / "data.tsv")]
    task = f"{name}_{with_data}"
    added = add(server.repository, "hub", SAVED / name, task, "--json", *options)
    assert added.exit_code == 0, added.output
    record = json.loads(added.stdout)
    assert record["head"] == head
    compared, kept = record["provenance"]["answers"], record["provenance"]["accuracy"]
    assert compared["source"] == "the adapter on its base"
    assert compared["texts"] == (len(rows) if with_data else 128)
    assert compared["agreement"] > 0.9999
    assert kept == ({"rows": 5, "accuracy": 1, "source_accuracy": 1} if with_data else None)
    if head == "embedding":  # the library has no pooling: the mean of its hidden states, normalised
        values = [each.mean(0) / np.linalg.norm(each.mean(0)) for each in values]
    found = answers_of(server, "hub", task, golden["texts"], output)
    for got, wanted in zip(found, values, strict=True):
        np.testing.assert_allclose(got[: len(wanted)], wanted, atol=1e-4)


def test_spans_equal_those_of_adapterhubs_library(server: RunningServer) -> None:
    golden = json.loads((SAVED / "answers.json").read_text())
    added = add(server.repository, "hub", SAVED / "spans", "spans", "--json", "--base-model", str(SAVED / "base"))
    assert added.exit_code == 0, added.output
    assert json.loads(added.stdout)["head"] == "question-answering"
    tokenizer, texts = AutoTokenizer.from_pretrained(SAVED / "base"), golden["texts"]
    with Client(f"grpc://{server.grpc}") as client:
        for question, context, values in zip(texts, [*texts[1:], texts[0]], golden["logits"]["spans"], strict=True):
            inputs = {name: np.array([[text.encode()]], object) for name, text in
                      (("text_input", question), ("text_pair", context))}  # fmt: skip
            found = client.infer("hub", inputs, task="spans")
            wanted = answer_or_none(np.asarray(values), tokenizer(question, context), context, impossible=False)
            assert (found["start"][0, 0], found["end"][0, 0]) == wanted
