from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from testing.servers import RunningServer, running_server
from tests.boundary.asking import BACKENDS, PROTOCOLS, Asker, asking, write_model


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for every test that leaves its models serving."""
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
    """A model of the test's own, for what leaves a model changed."""
    name = f"fresh{next(_numbers)}"
    write_model(server.repository, name)
    server.control.load(name, None)
    yield name
    server.control.unload(name)


@pytest.fixture(scope="session")
def askers(server: RunningServer) -> Iterator[dict[str, Asker]]:
    with asking(server, *PROTOCOLS) as both:
        yield {each.protocol: each for each in both}


@pytest.fixture(params=PROTOCOLS)
def ask(request: pytest.FixtureRequest, askers: dict[str, Asker]) -> Asker:
    return askers[request.param]
