"""Configs of models: a mistake fails the load at once, with one sentence."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testing.servers import RunningServer, running_server
from tests.boundary.clients import BACKENDS, PROTOCOLS, ProbeClient, connected, outcome, write_model
from tidal.errors import Internal

pytestmark = pytest.mark.server

_names = (f"wrong{number}" for number in itertools.count())


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"max_queue_sise": 3}, "unknown parameter 'max_queue_sise' in config.pbtxt: did you mean 'max_queue_size'?"),
        ({"qqq": 3}, "unknown parameter 'qqq' in config.pbtxt: accepted: answer_timeout_s, limit, "),
        ({"max_queue_size": "many"}, "parameter 'max_queue_size' in config.pbtxt is 'many': input should be a valid"),
        ({"answer_timeout_s": 0}, "parameter 'answer_timeout_s' in config.pbtxt is '0': input should be greater"),
        (
            {"limit": 65},
            "parameter 'limit' in config.pbtxt is '65': input should be less than or equal to 64 (a number",
        ),
        (
            {"config": "instance_group { count: 2 kind: KIND_CPU }"},
            "instance_group has 2 instances; accepted is 1",
        ),
    ],
)
def test_a_mistake_fails_the_load(server: RunningServer, parameters: dict[str, Any], message: str) -> None:
    name = next(_names)
    write_model(server.repository, name, **parameters)
    with pytest.raises(Internal) as refused:
        server.control.load(name, None)
    assert message in str(refused.value)
    assert not server.stub_pids(name)


def test_a_mistake_in_a_reload_leaves_the_model_serving(
    server: RunningServer, clients: dict[str, ProbeClient], fresh: str
) -> None:
    write_model(server.repository, fresh, limit="none")
    with pytest.raises(Internal, match="parameter 'limit'"):
        server.control.load(fresh, None)
    assert [outcome(ask, "reply", model=fresh) for ask in clients.values()] == ["OK"] * 2


def test_parameters_reach_the_service_and_tritons_own_are_ignored(
    server: RunningServer, clients: dict[str, ProbeClient]
) -> None:
    write_model(server.repository, "noted", note=" noted", limit=64, TRITON_SWITCH="x")
    server.control.load("noted", None)
    for ask in clients.values():
        assert ask("reply", model="noted")["echo"].item() == b"reply noted"
    server.control.unload("noted")


COMPLETE = """
max_batch_size: 2
input [ { name: "action" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "rows" data_type: TYPE_INT32 dims: [ 1 ] } ]
dynamic_batching { max_queue_delay_microseconds: 100 }
instance_group [ { count: 1 kind: KIND_CPU } ]
"""


@pytest.fixture(scope="module")
def bare_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server without metrics that does not complete configs."""
    repository = tmp_path_factory.mktemp("bare") / "models"
    write_model(repository, "complete", config=COMPLETE)
    arguments = ("--allow-metrics=false", "--disable-auto-complete-config")
    with running_server(repository, extra_backends=BACKENDS, arguments=arguments) as running:
        yield running


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_complete_config_without_metrics(bare_server: RunningServer, protocol: str) -> None:
    assert bare_server.load_error("complete") == ""
    with connected(bare_server, protocol) as (ask,):
        for _ in range(20):
            assert ask(["reply", "reply"], model="complete")["rows"].tolist() == [[2], [2]]
        assert outcome(ask, "drop", model="complete") == "INTERNAL"
        assert outcome(ask, ["reply"] * 3, model="complete") == "INVALID_ARG"
        assert outcome(ask, "hold", model="complete", latency_ms=100) == "UNAVAILABLE"
        assert outcome(ask, "reply", model="complete") == "OK"
    assert "housekeeping failed" not in bare_server.log_text()


def test_completion_keeps_the_fields_of_the_file(server: RunningServer, tmp_path: Path) -> None:
    config = server.control.config("probe", 1)
    assert config["max_batch_size"] == 64
    assert [entry["name"] for entry in config["input"]] == ["action", "value"]
    assert "dynamic_batching" in config
    write_model(server.repository, "written", config=COMPLETE)
    server.control.load("written", None)
    config = server.control.config("written", 1)
    assert config["max_batch_size"] == 2
    assert [entry["name"] for entry in config["output"]] == ["rows"]
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 100
    server.control.unload("written")
