"""A real server with a tiny model of every backend, named as in docs/how-to/measure-with-perf-analyzer.md."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.cascades import LARGE, SMALL, Cascades
from testing.classifiers import build_classifier
from testing.config import parameter
from testing.decoders import build_decoder, write_decoder
from testing.models import make_tiny_classifier
from testing.once import built_once
from testing.pets import Base
from testing.pets import build as build_base
from testing.servers import RunningServer, running_server
from testing.vision import publish_tiny
from tests.tabi.conftest import cascades
from tidal_builders.tabi.config import cascade_config_pbtxt

__all__ = ["cascades"]

PAGE = Path(__file__).parents[2] / "docs/how-to/measure-with-perf-analyzer.md"
#: The admin key of the server.
KEY = "a-key-of-the-tests"
#: More than the 128 random characters of perf_analyzer's inputs, each of which may be a token.
MAX_LENGTH = 256


def block(before: str) -> str:
    """The first code block of the page after some words."""
    return PAGE.read_text().partition(before)[2].split("```", 2)[1].partition("\n")[2]


@pytest.fixture(scope="package")
def repository(cascades: Cascades, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`intents` (arlo), `encoder` (pets), `intents_cascade` (tabi), `digits` (otas) and `writer` (flover); and the
    ensemble `intents_texts` of docs/how-to/measure-with-perf-analyzer.md."""
    built = built_once(tmp_path_factory, "every_backend", lambda folder: build_every_backend(folder, cascades))
    repository = tmp_path_factory.mktemp("every_backend") / "repository"
    shutil.copytree(built / "repository", repository)
    return repository


def build_every_backend(folder: Path, cascades: Cascades) -> None:
    """Write the models of all backends into `folder / "repository"`."""
    folder.mkdir()
    repository = folder / "repository"
    source = make_tiny_classifier(folder / "source", max_position=MAX_LENGTH)
    build_classifier(repository, source, name="intents", lengths=[MAX_LENGTH], max_batch=16)
    base = Base(source, folder / "pets", build_base(source, folder / "pets", "base", max_tokens=2 * MAX_LENGTH))
    tasks = base.copy(repository, "encoder")
    base.add(tasks, "lora", 0, "city")
    for level in (SMALL, LARGE):
        cascades.copy_level(repository, level)
    manifest = cascades.publish(repository, "intents_cascade", 0.6)
    truncate = parameter("truncate", "true")  # its levels read 64 tokens
    (repository / "intents_cascade" / "config.pbtxt").write_text(cascade_config_pbtxt(manifest) + truncate)
    texts = repository / "intents_texts"
    (texts / "1").mkdir(parents=True)
    (texts / "config.pbtxt").write_text(block("`model_repository/intents_texts/config.pbtxt`"))
    vision = publish_tiny(folder / "vision")
    vision.add(vision.copy(repository, "digits"), "digit", 10)
    build_decoder(folder, "writer", write_decoder(folder / "decoder", "gpt2"), slots=4)


@pytest.fixture(scope="package")
def server(repository: Path) -> Iterator[RunningServer]:
    with running_server(repository, exit_timeout_s=3, key=KEY) as running:
        for model in ("intents", "encoder", "intents_cascade", "digits", "writer", "intents_texts"):
            assert running.load_error(model) == ""
        yield running
