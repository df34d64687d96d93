"""What pages need beside README's models, and what their commands become in tests.

A page's models have tiny random weights. They are built and loaded when the page is run, into the repository and the
server of README's models.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from testing.models import make_tiny_classifier
from testing.token_models import make_tiny_head
from tests.docs.blocks import blocks_of
from tests.docs.pages import PAGES, ROOT
from tidal_gateway.keys.store import KeyEntry, KeyFile

Make = Callable[[Path], object]


@dataclass(frozen=True, slots=True)
class Needed:
    """What a page needs.

    Attributes:
        models: Models to build and load, from their specs as a page shows them, with fields that make the builds quick.
        files: What writes each file and folder that the page names.
        commands: Commands to run before the page.
    """

    models: tuple[str, ...] = ()
    files: Mapping[str, Make] = field(default_factory=dict)
    commands: tuple[str, ...] = ()


def _lora(task_type: str, model_class: str, **head: Any) -> Make:
    """A random LoRA of the encoder of README's samples."""

    def make(folder: Path) -> None:
        import torch
        import transformers
        from peft import LoraConfig, get_peft_model

        model = getattr(transformers, model_class).from_pretrained(folder.parent / "samples/encoder", **head)
        model.config.save_pretrained(folder)
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
            lora = get_peft_model(model, LoraConfig(task_type=task_type, r=4, target_modules=["query", "value"]))
            for weight in lora.parameters():
                if weight.requires_grad:
                    weight.copy_(torch.randn_like(weight) * 0.1)
        lora.save_pretrained(str(folder))

    return make


def _passages(file: Path) -> None:
    rows = (file.parent / "samples/reviews.tsv").read_text().splitlines()[1:31]
    file.write_text("\n".join(row.split("\t")[0] for row in rows))


def _ensemble(folder: Path) -> None:
    """An ensemble of the checkout over README's models."""
    (folder / "1").mkdir(parents=True)
    config = (ROOT / "model_repository" / folder.name / "config.pbtxt").read_text()
    for demo, own in _STEPS.items():
        config = config.replace(f'model_name: "{demo}"', f'model_name: "{own}"')
    (folder / "config.pbtxt").write_text(config)


def _keys(file: Path) -> None:
    key = KeyEntry(id="4f1c2a9b03de", sha256="0" * 64, name="former", created=datetime.now(UTC))
    file.write_text(KeyFile(keys=(key,)).model_dump_json())


_ENSEMBLES = ("text_to_label", "image_to_label", "text_to_checked_label", "retrieve_and_rerank")
#: Models of README that ensembles use instead of the demo's.
_STEPS = {"digits": "vit", "intents_cascade": "reviews", "encoder": "shared", "embedder": "minilm"}
NEEDED = {
    "allocate-instances.md": Needed(models=("intents",)),
    "build-in-a-pipeline.md": Needed(
        models=("intents",), commands=("mkdir -p specs", "cp sentiment.yaml specs", "ln -s ../samples specs/samples")
    ),
    "combine-models.md": Needed(
        models=("intents", "reranker"),
        files={"passages.txt": _passages, **{f"model_repository/{name}": _ensemble for name in _ENSEMBLES}},
        commands=(
            "tidal tasks add vit model_repository/vit/tasks/digit-images --name digit",
            "tidal tasks add shared model_repository/shared/tasks/mood --name fits",
            *(f"tidal models load {name}" for name in ("text_to_label", "image_to_label", "text_to_checked_label")),
        ),
    ),
    "extract-entities-and-answers.md": Needed(models=("ner", "qa")),
    "issue-api-keys.md": Needed(files={"keys.json": _keys}),
    "log-requests.md": Needed(commands=("tidal infer sentiment --text hello",)),
    "send-requests.md": Needed(models=("reranker", "ner", "qa")),
    "share-an-encoder.md": Needed(
        files={
            "my-reranker": _lora("SEQ_CLS", "AutoModelForSequenceClassification", num_labels=1),
            "my-embeddings": _lora("FEATURE_EXTRACTION", "AutoModel"),
            "my-reader": _lora("QUESTION_ANS", "AutoModelForQuestionAnswering"),
        }
    ),
    "size-and-tune.md": Needed(models=("intents",)),
}
_SOURCES: dict[str, Make] = {
    "intents": lambda folder: make_tiny_classifier(folder, layers=1, hidden=32, max_position=512),
    "ner": lambda folder: make_tiny_head(folder, "TokenClassification", labels=("O", "B-PER", "I-PER")),
    "qa": lambda folder: make_tiny_head(folder, "QuestionAnswering"),
    "reranker": lambda folder: make_tiny_classifier(folder, layers=1, hidden=32, labels=("score",)),
}
#: Fields of a kind's specs with which a build takes seconds.
_QUICK: dict[str, dict[str, Any]] = {
    "arlo": {"max_batch": 2, "precision": "fp32", "form": "dynamic"},
    # A share of re-routed queries is a target for cascades of several levels, and on a busy machine all of them may be
    # slower than a single one.
    "tabi": {"runtimes": {"max_batch": 2}, "target": {"latency_ms": 60_000}, "latencies": "engines"},
    "pets": {"max_batch": 4, "max_tokens": 256, "max_length": 64, "profile_seconds": 0.1},
    "otas": {"max_batch": 4, "profile_seconds": 0.1},
    "flover": {"profile_seconds": 0.1},
}
#: A spec that no page shows.
_INTENTS = {
    **{"kind": "arlo", "name": "intents", "model": "tiny/intents", "placement": "partitioned", "lengths": [64, 512]},
    **{"max_batch": 2, "precision": "fp32"},
}
LOG = "requests.jsonl"
#: What commands become, so that they end within seconds and change nothing outside the folder of the test.
_REPLACED = (
    (r"--model embedder\b", "--model minilm"),
    (r"^tidal serve --model (\w+)( &)?$", r"tidal models load \1"),
    (r"^tidal controller(?!.*--once)", "tidal controller --once"),
    (r"^tidal controller(?!.*--period)", "tidal controller --period 1"),
    (r"--period \d+", "--period 1"),
    (r"--metrics-port \d+", "--metrics-port 0"),
    (r"--rate 100 --seconds 60\b", "--rate 5 --seconds 1"),
    (r"/srv/models\b", "model_repository"),
    (r"/srv/", ""),
    (r"/var/log/tidal/requests\.jsonl\b", LOG),
)


def in_a_test(text: str) -> str:
    """Commands or a program of a page as the test runs them."""
    for pattern, new in _REPLACED:
        text = re.sub(pattern, new, text, flags=re.MULTILINE)
    return text


def prepare(page: str, folder: Path, run: Callable[[str], object]) -> None:
    """Build, load and write what a page needs.

    Args:
        page: Name of the page's file.
        folder: Folder of the samples, specs and the repository.
        run: Runs a command in it; one that was run before is skipped.
    """
    needed = NEEDED.get(page, Needed())
    for model in needed.models:
        if not (folder / f"{model}.yaml").exists():
            (folder / f"{model}.yaml").write_text(yaml.safe_dump(_spec(model)))
        if model in _SOURCES and not (folder / "tiny" / model).exists():
            _SOURCES[model](folder / "tiny" / model)
    for model in needed.models:
        run(f"tidal build {model}.yaml")
        run(f"tidal models load {model}")
    for name, make in needed.files.items():
        make(folder / name)
    for command in needed.commands:
        run(command)


def _spec(model: str) -> dict[str, Any]:
    """The spec of a model as a page shows it, changed to be built in seconds."""
    if model == _INTENTS["name"]:
        return _INTENTS
    (shown,) = (block.text for page in PAGES for block in blocks_of(page) if block.text.startswith(f"# {model}.yaml"))
    spec = quick_spec(shown)
    return spec | ({"model": f"tiny/{model}"} if model in _SOURCES else {})


def quick_spec(shown: str) -> dict[str, Any]:
    """The spec of a block, changed to be built in seconds."""
    spec: dict[str, Any] = yaml.safe_load(shown)
    added = _QUICK[spec["kind"]]
    return spec | {key: {**spec.get(key, {}), **new} if key == "runtimes" else new for key, new in added.items()}
