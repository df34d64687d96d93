"""A server with a model of every backend and kind of call, gateways in front of it, and a headless Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from testing.cascades import Cascades
from testing.classifiers import build_classifier
from testing.gateways import RunningGateway, running_gateway
from testing.once import built_once
from testing.serving import serving
from testing.token_models import make_tiny_head
from testing.waiting import until
from tests.every_backend.conftest import build_every_backend
from tests.gateway.conftest import Backend, write_doubles
from tests.tabi.conftest import cascades
from tidal_gateway.keys.store import add_key

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["cascades"]


@pytest.fixture(scope="package")
def backend(cascades: Cascades, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    """`intents` (arlo), `encoder` (pets), `intents_cascade` (tabi), `digits` (otas), `writer` (flover), `ner`, `qa`.

    `embedder`, `reranker` and `talker` are doubles.
    """
    built = built_once(tmp_path_factory, "every_backend", lambda folder: build_every_backend(folder, cascades))
    heads = built_once(tmp_path_factory, "console_heads", _build_heads)
    folder = tmp_path_factory.mktemp("console")
    repository = folder / "models"
    shutil.copytree(built / "repository", repository)
    shutil.copytree(heads / "repository", repository, dirs_exist_ok=True)
    write_doubles(repository, folder / "doubles.log", ("embedder", "reranker", "talker"))
    with serving(repository, folder / "runtime", "--strict", "--exit-timeout", "5") as served:
        yield Backend(served, folder / "doubles.log")


def _build_heads(folder: Path) -> None:
    folder.mkdir()
    tokens = make_tiny_head(folder / "tokens", "TokenClassification", labels=("O", "B-PER", "I-PER"))
    questions = make_tiny_head(folder / "questions", "QuestionAnswering", seed=1)
    build_classifier(folder / "repository", tokens, name="ner")
    build_classifier(folder / "repository", questions, name="qa")


@pytest.fixture(scope="package")
def gateway(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway without keys, for at most 3 viewers."""
    folder = tmp_path_factory.mktemp("console_gateway")
    with running_gateway(folder, "--server", backend.address, "--console-viewers", "3") as started:
        assert until(started.ready, 90), (folder / "stderr").read_text()
        yield started


@pytest.fixture(scope="package")
def locked(
    backend: Backend, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningGateway, dict[str, str]]]:
    """A gateway with keys: `all` may use everything, `some` the model `digits` and the task `encoder/city`."""
    folder = tmp_path_factory.mktemp("console_locked")
    keys = {"all": add_key(folder / "keys.json", "all")[0]}
    keys["some"] = add_key(folder / "keys.json", "some", models=("digits", "encoder/city"))[0]
    with running_gateway(folder, "--server", backend.address, "--keys", str(folder / "keys.json")) as started:
        assert until(started.ready, 90), (folder / "stderr").read_text()
        yield started, keys


@pytest.fixture(scope="module")  # its event loop would be in the way of other modules
def browser() -> Iterator[Browser]:
    """Debian's Chromium; playwright's own would be a download from elsewhere."""
    sync_api: Any = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield found
        found.close()
