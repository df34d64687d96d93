"""A repository with a tiny model of each system, and requests to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from testing.cascades import LABELS, LARGE, MAX_LENGTH, SMALL, Cascades
from testing.decoders import write_decoder
from testing.models import make_tiny_classifier
from testing.pets import Base
from testing.pets import build as build_base
from testing.vision import publish_tiny
from tests.otas.test_images import encoded, photo
from tidal_builders.arlo.build import build_arlo
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


def publish_everything(folder: Path) -> Path:
    """Build the models into a repository; return its folder."""
    repository = folder / "models"
    _partitioned(folder, repository)
    _cascade(folder, repository)
    _encoder(folder, repository)
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


def _partitioned(folder: Path, repository: Path) -> None:
    source = make_tiny_classifier(folder / "tiny", max_position=64)
    spec = {"kind": "arlo", "name": "tiny", "model": str(source), "lengths": [16, 64], "max_batch": 1}
    parsed: Any = parse_spec({**spec, "placement": "partitioned", "slo_ms": 400}, "test")
    build_arlo(parsed, repository, spec_file=Path("tiny.yaml"))


def _cascade(folder: Path, repository: Path) -> None:
    for name, layers, seed in ((SMALL, 1, 0), (LARGE, 2, 1)):
        source = make_tiny_classifier(folder / name, layers=layers, labels=LABELS, max_position=MAX_LENGTH, seed=seed)
        spec = {"kind": "arlo", "name": name, "model": str(source), "lengths": [16, MAX_LENGTH], "max_batch": 8}
        parsed: Any = parse_spec({**spec, "outputs": ["logits", "attention_received"]}, "test")
        build_arlo(parsed, repository, spec_file=Path(f"{name}.yaml"))
    Cascades(repository).publish(repository, MODELS["tabi"], 0.6)


def _encoder(folder: Path, repository: Path) -> None:
    source = make_tiny_classifier(folder / "encoder", max_position=64)
    base = Base(source, folder / "base", build_base(source, folder / "base", "base"))
    tasks = base.copy(repository, MODELS["pets"])
    for kind in ("lora", "bitfit"):
        base.add(tasks, kind, 0)


def _writer(folder: Path, repository: Path) -> None:
    source = write_decoder(folder / "writer")
    spec = {"kind": "flover", "name": MODELS["flover"], "model": str(source), "max_concurrency": 4, "threads": 1}
    parsed: Any = parse_spec({**spec, "profile_seconds": 0.01}, "test")
    build_flover(parsed, repository, spec_file=folder / "writer.yaml", force=False)
