"""A repository with a tiny model of each system, and requests to them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from testing.cascades import Cascades, built_levels
from testing.classifiers import build_classifier
from testing.decoders import write_decoder
from testing.models import make_tiny_classifier
from testing.pets import tiny_base
from testing.vision import publish_tiny
from tests.otas.photos import encoded, photo
from tidal_builders.flover.build import build_flover
from tidal_builders.specs import parse_spec
from tidal_client import Client, RequestError

MODELS = {"arlo": "tiny", "tabi": "cascade", "pets": "encoder", "otas": "vision", "flover": "writer"}
#: As deploy/demo_load.py takes them, `{images}` being a folder with some.
TARGETS = (
    "text:tiny",
    "text:cascade",
    "text:encoder:lora_0,bitfit_0",
    "image:vision:animals:{images}",
    "generate:writer",
)


def publish_everything(folder: Path, temporary: pytest.TempPathFactory) -> Path:
    """Write the models into a repository; return its folder.

    Args:
        folder: Folder of the repository and of the models' sources.
        temporary: Factory of temporary folders of this worker, for models that tests share.
    """
    repository = folder / "models"
    source = make_tiny_classifier(folder / "tiny", max_position=64)
    build_classifier(repository, source, lengths=[16, 64], max_batch=1, placement="partitioned", slo_ms=400)
    shutil.copytree(built_levels(temporary), repository, dirs_exist_ok=True)
    Cascades(repository).publish(repository, MODELS["tabi"], 0.6)
    base = tiny_base(temporary)
    tasks = base.copy(repository, MODELS["pets"])
    for kind in ("lora", "bitfit"):
        base.add(tasks, kind, 0)
    vision = publish_tiny(folder / "otas")
    tasks = vision.copy(repository, MODELS["otas"])
    vision.add(tasks, "animals", 3)
    _writer(folder, repository)
    return repository


def write_images(folder: Path) -> Path:
    """A folder with an image."""
    folder.mkdir()
    (folder / "photo.png").write_bytes(encoded(photo(50, 40)))
    return folder


def ask_wrongly(grpc: str) -> None:
    """Send an invalid request to each model, for metrics that count refused requests only."""
    with Client(f"grpc://{grpc}") as client:
        for system, model in MODELS.items():
            try:
                if system == "otas":
                    client.classify_image(model, b"no image", task="animals")
                elif system == "flover":
                    client.generate(model, "a" * 10_000)
                else:
                    client.classify(model, "good " * 10_000, **({"task": "none"} if system == "pets" else {}))
            except RequestError:
                continue
            raise AssertionError(f"{model} accepted an invalid request")


def _writer(folder: Path, repository: Path) -> None:
    source = write_decoder(folder / "writer")
    spec = {"kind": "flover", "name": MODELS["flover"], "model": str(source), "max_concurrency": 4, "threads": 1}
    parsed: Any = parse_spec({**spec, "profile_seconds": 0.01}, "test")
    build_flover(parsed, repository, spec_file=folder / "writer.yaml", force=False)
