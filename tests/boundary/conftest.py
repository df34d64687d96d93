from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from testing.servers import RunningServer, running_server
from tests.boundary.clients import BACKENDS, PROTOCOLS, ProbeClient, connected, write_model


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The server shared by tests that leave its models serving."""
    repository = tmp_path_factory.mktemp("boundary") / "models"
    write_model(repository, "probe")
    write_model(repository, "small", max_queue_size=4)
    write_model(repository, "impatient", answer_timeout_s=0.5)
    access_log = str(repository.with_name("requests.jsonl"))
    with running_server(repository, extra_backends=BACKENDS, access_log=access_log) as running:
        for model in ("probe", "small", "impatient"):
            assert running.load_error(model) == ""
        yield running


_numbers = itertools.count()


@pytest.fixture
def fresh(server: RunningServer) -> Iterator[str]:
    """A new model for a test that changes it."""
    name = f"fresh{next(_numbers)}"
    write_model(server.repository, name)
    server.control.load(name, None)
    yield name
    server.control.unload(name)


@pytest.fixture(scope="session")
def clients(server: RunningServer) -> Iterator[dict[str, ProbeClient]]:
    with connected(server, *PROTOCOLS) as both:
        yield {each.protocol: each for each in both}


@pytest.fixture(params=PROTOCOLS)
def ask(request: pytest.FixtureRequest, clients: dict[str, ProbeClient]) -> ProbeClient:
    return clients[request.param]
