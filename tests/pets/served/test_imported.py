"""Tasks imported by the command from files that transformers, peft and AdapterHub's library saved, and served."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
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
from typer.testing import CliRunner, Result

from testing.hub import hub_environment, running_hub
from testing.models import make_tiny_classifier
from testing.pets import Base
from testing.servers import RunningServer
from testing.task_heads import answer_or_none
from tests.pets.served.conftest import Served
from tidal.commands import tasks as command
from tidal.pets.base import load_base_layers
from tidal.pets.tasks.folder import load_task
from tidal.pets.terms import FloatArray
from tidal.tasks.folder import tasks_folder
from tidal_client import Client

pytestmark = pytest.mark.server

SAVED = Path(__file__).parents[1] / "importing/adapterhub_saved"
LABELS = ("down", "same", "up")
TEXTS = [
    "good film", "the service was not very good", "book a flight to the city, please", "never again", "best song",
    "why was the train so slow today?", "i love this restaurant and its food", "cancel my hotel",
]  # fmt: skip
# Kind of the task that each source becomes, and options of the command.
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "full": ("diff_pruning", ("--sparsity", "0")),
    "sparse": ("diff_pruning", ("--sparsity", "0.99")),
    "bitfit": ("bitfit", ()),
    "masks": ("maskbert", ()),
    "lora": ("lora", ("--labels", ",".join(LABELS))),
}


@dataclass(frozen=True)
class Source:
    """A folder to import, and the unmodified model's logits for `TEXTS`."""

    folder: Path
    logits: FloatArray

    def data(self, path: Path) -> Path:
        """Write a labelled file whose labels the source predicts."""
        rows = [f"{text}\t{LABELS[label]}" for text, label in zip(TEXTS, self.logits.argmax(1), strict=True)]
        path.write_text("\n".join(["text\tlabel", *rows]) + "\n")
        return path


def answers(model: Any, tokenizer: Any) -> FloatArray:
    with torch.inference_mode():
        return np.concatenate([model(**tokenizer(text, return_tensors="pt")).logits.numpy() for text in TEXTS])


def fine_tuned(base: Path, folder: Path, change: Callable[[str, torch.Tensor], torch.Tensor | None]) -> Source:
    """Save a checkpoint with a classifier of its own, and with the weights that `change` returns for their names."""
    names = {"id2label": dict(enumerate(LABELS)), "label2id": {label: n for n, label in enumerate(LABELS)}}
    model = AutoModelForSequenceClassification.from_pretrained(base, **names)
    tokenizer = AutoTokenizer.from_pretrained(base)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(3)
        for name, weight in model.named_parameters():
            if name.startswith("classifier"):
                weight.copy_(torch.randn_like(weight))
            elif "embeddings" not in name or "LayerNorm" in name:
                new = change(name, weight)
                if new is not None:
                    weight.copy_(new)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Source(folder, answers(model.eval(), tokenizer))


def share(weight: torch.Tensor, part: float) -> torch.Tensor:
    """A mask of a share of a matrix, chosen at random."""
    found = torch.zeros(weight.numel(), dtype=torch.bool)
    found[torch.randperm(weight.numel())[: int(part * weight.numel())]] = True
    return found.view_as(weight)


def low_rank(base: Path, folder: Path, **options: Any) -> Source:
    """Save a LoRA adapter with random values by peft."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(4)
        model = AutoModelForSequenceClassification.from_pretrained(base)
        chosen = {"task_type": "SEQ_CLS", "r": 4, "lora_alpha": 8, "target_modules": ["query", "value"]} | options
        lora = get_peft_model(model, LoraConfig(**chosen))
        for weight in lora.parameters():
            if weight.requires_grad:
                weight.copy_(torch.randn_like(weight) * 0.2)
    lora.save_pretrained(folder)
    return Source(folder, answers(lora.eval(), AutoTokenizer.from_pretrained(base)))


def rename_base(lora: Path, folder: Path, name: str | None) -> Path:
    """Copy an adapter and change the name of its base."""
    shutil.copytree(lora, folder)
    config = folder / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": name}))
    return folder


@pytest.fixture(scope="module")
def sources(base: Base, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Source]:
    folder = tmp_path_factory.mktemp("sources")

    def noise(weight: torch.Tensor) -> torch.Tensor:
        return weight + torch.randn_like(weight) * 0.1

    def matrix(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[str, torch.Tensor], torch.Tensor | None]:
        return lambda _name, weight: change(weight) if weight.ndim == 2 else None

    changes: dict[str, Callable[[str, torch.Tensor], torch.Tensor | None]] = {
        "full": lambda _name, weight: noise(weight),
        "sparse": lambda _name, weight: (
            torch.where(share(weight, 0.009), noise(weight) + 0.5, weight) if weight.ndim == 2 else noise(weight)
        ),
        "bitfit": lambda _name, weight: noise(weight) if weight.ndim == 1 else None,
        "masks": matrix(lambda weight: torch.where(share(weight, 0.05), 0.0, weight)),
    }
    found = {name: fine_tuned(base.source, folder / name, change) for name, change in changes.items()}
    return found | {"lora": low_rank(base.source, folder / "lora")}


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


def add(repository: Path, model: str, source: Path, name: str, *options: str | Path) -> Result:
    arguments = ["add", model, str(source), "--name", name, *map(str, options), "--repository", str(repository)]
    return CliRunner().invoke(command.tasks, arguments)


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


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with another base of equal shape and a LoRA adapter for it."""
    folder = tmp_path_factory.mktemp("foreign")
    low_rank(make_tiny_classifier(folder / "other", max_position=64, seed=5), folder / "lora")
    return folder


class TestRefusing:
    """Imports that the command refuses leave no task."""

    @pytest.fixture
    def repository(self, base: Base, tmp_path: Path) -> Path:
        base.copy(tmp_path / "r", "base")
        return tmp_path / "r"

    def refused(self, repository: Path, source: Path, *options: str | Path) -> str:
        found = add(repository, "base", source, "mood", *options)
        assert found.exit_code == 1, found.output
        assert not [path for path in tasks_folder(repository / "base").glob("*") if path.name == "mood"]
        return found.stderr

    def test_a_task_that_differs_from_its_source(
        self, repository: Path, sources: dict[str, Source], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The comparison of answers detects any mistake between the source and the stored file."""
        from tidal_builders.pets.importing import checkpoint

        good = checkpoint.NormTerms
        monkeypatch.setattr(checkpoint, "NormTerms", lambda weight, bias: good(weight, bias + 0.3))
        message = self.refused(repository, sources["bitfit"].folder)
        assert "the stored task answers differently from the checkpoint: " in message
        assert "nothing was added (--force adds it anyway)" in message
        assert add(repository, "base", sources["bitfit"].folder, "mood", "--force").exit_code == 0
        notes = load_task(
            tasks_folder(repository / "base"), "mood", load_base_layers(repository / "base/1")
        ).info.provenance.notes
        assert "added by --force: the stored task answers differently from the checkpoint" in notes[-1]

    def test_a_refused_replacement_keeps_the_old_task(
        self, repository: Path, sources: dict[str, Source], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from tidal_builders.pets.importing import checkpoint

        assert add(repository, "base", sources["lora"].folder, "mood", *KINDS["lora"][1]).exit_code == 0
        good = checkpoint.NormTerms
        monkeypatch.setattr(checkpoint, "NormTerms", lambda weight, bias: good(weight, bias + 0.3))
        assert add(repository, "base", sources["bitfit"].folder, "mood", "--replace").exit_code == 1
        task = load_task(tasks_folder(repository / "base"), "mood", load_base_layers(repository / "base/1"))
        assert task.info.kind == "lora"

    def test_a_checkpoint_with_changed_embeddings_is_compared_without_them(
        self, repository: Path, base: Base, sources: dict[str, Source], tmp_path: Path
    ) -> None:
        changed = tmp_path / "changed"
        shutil.copytree(sources["bitfit"].folder, changed)
        model = AutoModelForSequenceClassification.from_pretrained(changed)
        with torch.no_grad():
            model.bert.embeddings.word_embeddings.weight.mul_(1.001)
        model.save_pretrained(changed)
        found = add(repository, "base", changed, "mood")
        assert found.exit_code == 0, found.output
        assert "not carried, because a task cannot change it: embeddings.word_embeddings.weight" in found.stdout

    @pytest.mark.parametrize("named", ["weights", "name", "nothing"])
    def test_a_lora_of_another_base(self, repository: Path, foreign: Path, tmp_path: Path, named: str) -> None:
        """The adapter names its base by a folder, by a name, or not at all."""
        other = foreign / "other"
        names = {"weights": str(other), "name": "some/encoder", "nothing": None}
        lora = rename_base(foreign / "lora", tmp_path / "lora", names[named])
        message = self.refused(repository, lora, *KINDS["lora"][1])
        assert {
            "weights": f"was trained on {other}, whose weights are not those of this model's base",
            "name": "was trained on 'some/encoder', which is not on this machine; this model was built from",
            "nothing": "names no base",
        }[named] in message
        assert "with --base-model FOLDER, or add it without the comparison with --force" in message

    def test_a_lora_of_another_base_unless_its_base_is_given(
        self, repository: Path, foreign: Path, base: Base, tmp_path: Path
    ) -> None:
        lora, labels = rename_base(foreign / "lora", tmp_path / "lora", None), KINDS["lora"][1]
        message = self.refused(repository, lora, *labels, "--base-model", foreign / "other")
        assert "is not the base that the model was built from: its weights differ" in message
        assert add(repository, "base", lora, "mood", *labels, "--base-model", base.source).exit_code == 0
        forced = add(repository, "base", lora, "forced", *labels, "--force")
        assert forced.exit_code == 0
        assert "note: added by --force: " in forced.stdout

    @pytest.mark.parametrize("options", [("--impossible-answers",), ("--max-answer-tokens", "5")])
    def test_options_of_questions_for_another_task(
        self, repository: Path, sources: dict[str, Source], options: tuple[str, ...]
    ) -> None:
        message = self.refused(repository, sources["lora"].folder, *KINDS["lora"][1], *options)
        assert f"{options[0]} is for tasks of question-answering, and this one is of classification" in message

    def test_a_lora_without_the_files_of_its_base(self, base: Base, repository: Path, sources: dict[str, Source],
                                                  tmp_path: Path) -> None:  # fmt: skip
        """Equal names identify the base, but the comparison of answers needs its files."""
        rename_base(sources["lora"].folder, tmp_path / "lora", "some/encoder")
        manifest = repository / "base/1/manifest.json"
        content = json.loads(manifest.read_text())
        content["source"]["model"] = "some/encoder"
        manifest.write_text(json.dumps(content))
        labels = KINDS["lora"][1]
        message = self.refused(repository, tmp_path / "lora", *labels)
        assert "the base's own files are not on this machine; name their folder by --base-model FOLDER" in message
        assert add(repository, "base", tmp_path / "lora", "mood", *labels, "--base-model", base.source).exit_code == 0
