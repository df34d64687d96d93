"""Models whose engines cost next to nothing: random weights, one or two tiny layers, one for each system.

They are built by `tidal build` and `tidal tasks`, so that other versions of the project build them with their own code.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from testing.decoders import write_decoder
from testing.models import make_tiny_classifier
from testing.tiny_vision import write_source

ARLO, PARTITIONED, TABI = "free_arlo", "free_partitioned", "free_tabi"
PETS, OTAS, FLOVER = "free_pets", "free_otas", "free_flover"
TASK = "task"
#: Number of generations that the decoder runs concurrently: as many as are measured.
STREAMS = 128
LONGEST = 256
_LABELS = ("negative", "neutral", "positive")
# The cascade's levels; noise in the weights of the first makes it err where the second is unsure.
_LEVELS = ("small", "large")
_NOISE = 0.08


def write_sources(folder: Path) -> None:
    """Write the models, a task, images and labelled texts that `build` reads.

    Args:
        folder: Folder to write; an existing source stays.
    """
    for name in ("classifier", "large"):
        if not (folder / name).exists():
            make_tiny_classifier(folder / name, layers=1, hidden=32, max_position=LONGEST, labels=_LABELS)
    if not (folder / "small").exists():
        _write_changed(folder / "large", folder / "small", _NOISE, "")
    if not (folder / TASK).exists():
        # A checkpoint whose biases alone differ is imported as BitFit.
        _write_changed(folder / "classifier", folder / TASK, 0.1, "bias")
    if not (folder / "labelled.tsv").exists():
        _write_labelled(folder / "large", folder / "labelled.tsv")
    if not (folder / "vision").exists():
        write_source(folder / "vision")
        draw = np.random.default_rng(0)
        images = draw.integers(0, 256, (40, 16, 16, 3), np.uint8)
        np.savez(folder / "images.npz", images=images, labels=np.arange(40) % 2)
    if not (folder / "decoder").exists():
        write_decoder(folder / "decoder", "llama")


def build(sources: Path, folder: Path, python: str = sys.executable) -> Path:
    """Build all models that are missing or stale; returns the repository.

    Args:
        sources: Folder written by `write_sources`.
        folder: Folder of specs and repository.
        python: Interpreter of the environment whose `tidal` builds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    repository = folder / "repository"
    runtimes = {"precision": "fp32", "form": "dynamic", "lengths": [LONGEST], "max_batch": 64, "threads": 1}
    specs: dict[str, dict[str, Any]] = {
        ARLO: {"kind": "arlo", "model": str(sources / "classifier"), "contexts": 1, **runtimes},
        PARTITIONED: {
            "kind": "arlo",
            "model": str(sources / "classifier"),
            "placement": "partitioned",
            **runtimes,
            "form": "static",
            "lengths": [32, LONGEST],
        },
        TABI: {
            "kind": "tabi",
            "levels": [{"name": name, "model": str(sources / name)} for name in _LEVELS],
            "data": str(sources / "labelled.tsv"),
            "target": {"escalation_rate": 0.3},
            "runtimes": runtimes,
        },
        PETS: {"kind": "pets", "model": str(sources / "classifier"), "threads": 1, "profile_seconds": 2},
        OTAS: {
            "kind": "otas",
            "model": str(sources / "vision"),
            "gammas": [-2, 0, 2],
            "static_batches": [],
            "threads": 1,
            "profile_seconds": 2,
        },
        FLOVER: {
            "kind": "flover",
            "model": str(sources / "decoder"),
            "max_concurrency": STREAMS,
            "threads": 1,
            "profile_seconds": 2,
        },
    }
    files = []
    for name, fields in specs.items():
        files.append(folder / f"{name}.yaml")
        files[-1].write_text(yaml.safe_dump({"name": name, **fields}))
    _tidal(python, "build", *map(str, files), "--repository", str(repository))
    if not (repository / PETS / "tasks" / TASK).exists():
        _tidal(python, "tasks", "add", PETS, str(sources / TASK), "--repository", str(repository))
    if not (repository / OTAS / "tasks" / TASK).exists():
        data = str(sources / "images.npz")
        options = ("--name", TASK, "--labels", "no,yes", "--epochs", "1", "--repository", str(repository))
        _tidal(python, "tasks", "train", OTAS, data, *options)
    return repository


def _tidal(python: str, *arguments: str) -> None:
    subprocess.run([python, "-m", "tidal_client.main", *arguments], check=True, stdout=sys.stderr)


def _write_changed(classifier: Path, folder: Path, noise: float, kind: str) -> None:
    """Write a copy of a classifier with noise in its encoder's parameters whose names end with `kind`."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(classifier)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(1)
        for name, parameter in model.bert.encoder.named_parameters():
            if name.endswith(kind):
                parameter += noise * torch.randn_like(parameter)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(classifier).save_pretrained(folder)


def _write_labelled(classifier: Path, file: Path) -> None:
    """Write texts with the labels that a classifier gives them."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    words = ("good", "bad", "great", "awful", "fine", "love", "hate", "slow", "fast", "very", "really", "not")
    draw = np.random.default_rng(0)
    texts = [f"{' '.join(draw.choice(words, 8))} {number}" for number in range(600)]
    model = AutoModelForSequenceClassification.from_pretrained(classifier).eval()
    with torch.inference_mode():
        inputs = AutoTokenizer.from_pretrained(classifier)(texts, padding=True, return_tensors="pt")
        found = model(**inputs).logits.argmax(-1)
    rows = [f"{text}\t{_LABELS[label]}" for text, label in zip(texts, found.tolist(), strict=True)]
    file.write_text("\n".join(["text\tlabel", *rows]) + "\n")
