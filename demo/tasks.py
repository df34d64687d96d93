"""Five small tasks, one of each kind of fine-tuning, on one frozen all-MiniLM-L6-v2."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from demo.texts import CITIES, LABELS, make_examples
from demo.train import minilm_folder

_AREAS = {
    "book_flight": "travel", "book_restaurant": "food", "weather": "travel", "play_music": "home",
    "set_alarm": "time", "send_message": "people", "transfer_money": "money", "smart_home": "home",
}  # fmt: skip
_QUESTION = re.compile(r"(are|is|do|will|what|how|could|can) ")
_POLITE = re.compile(r"please|could you|can you|thanks|if that is possible|I would like")


@dataclass(frozen=True, slots=True)
class DemoTask:
    """A task: its name, its kind of fine-tuning, and its label for a text and the name of its intent."""

    name: str
    kind: str
    label: Callable[[str, str], str]


TASKS = (
    DemoTask("intent", "diff_pruning", lambda text, intent: intent),
    DemoTask("area", "adapter", lambda text, intent: _AREAS[intent]),
    DemoTask("question", "bitfit", lambda text, intent: "question" if _QUESTION.match(text) else "order"),
    DemoTask("polite", "maskbert", lambda text, intent: "polite" if _POLITE.search(text) else "plain"),
    DemoTask("city", "lora", lambda text, intent: "city" if any(c in text for c in CITIES) else "no city"),
)


def copy_encoder(target: Path) -> None:
    """Copy all-MiniLM-L6-v2 to a folder that the specs name."""
    if not target.exists():
        shutil.copytree(minilm_folder(), target)


def train_tasks(repository: Path, model: str, source: Path, done: Callable[[str], None]) -> None:
    """Train missing tasks and add them to a built base.

    Args:
        repository: Model repository.
        model: Name of the base.
        source: Folder of the same encoder in Hugging Face's format.
        done: Receives one line about each task.
    """
    examples = make_examples(640, seed=1)
    for task in TASKS:
        truth = [task.label(text, LABELS[intent]) for text, intent in examples]
        train_one(repository, model, source, task.name, task.kind, [(text,) for text, _ in examples], truth, done)


def train_one(
    repository: Path,
    model: str,
    source: Path,
    name: str,
    kind: str,
    texts: Sequence[Sequence[str]],
    truth: Sequence[str],
    done: Callable[[str], None],
) -> None:
    """Train a task and add it to a built base unless it exists.

    Args:
        repository: Model repository.
        model: Name of the base.
        source: Folder of the same encoder in Hugging Face's format.
        name: Name of the task.
        kind: Kind of fine-tuning.
        texts: Training texts, each one string or a pair of strings.
        truth: Label of each text.
        done: Receives one line about the task.
    """
    from transformers import AutoModel, AutoTokenizer

    from tidal.pets.base import load_base_layers
    from tidal.pets.tasks.folder import add_task
    from tidal.pets.tasks.manifest import Provenance
    from tidal.repository.entries import ModelEntry
    from tidal.tasks.folder import scan, tasks_folder
    from tidal_builders.pets.training.settings import TrainingSettings
    from tidal_builders.pets.training.train import train_task

    entry = ModelEntry(repository / model)
    version, folder = entry.latest(), tasks_folder(entry.folder)
    assert version is not None
    if name in scan(folder):
        return
    base, labels = load_base_layers(version), sorted(set(truth))
    encoder, tokenizer = AutoModel.from_pretrained(source), AutoTokenizer.from_pretrained(source)
    found = train_task(encoder, tokenizer, base, kind, texts, truth, labels, TrainingSettings(epochs=4, longest=64))
    made = Provenance(format="trained", source=str(source), notes=(f"{len(texts)} texts of the demo",))
    add_task(folder, name, kind, found.terms, base, made)
    done(f"{name}: {kind}, {len(labels)} classes, trained in {found.seconds:.0f} s")
