"""The request log and the traces of a real server with a model of each system, over HTTP and gRPC."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from testing.waiting import until
from tests.deploy import everything
from tests.deploy.conftest import Observed
from tidal_client import Client, RequestError

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

Ask = Callable[[Client, Observed, str], Any]
ASK: dict[str, Ask] = {
    "arlo": lambda client, _, name: client.classify_many("tiny", ["good", "good " * 40], request_id=name),
    "tabi": lambda client, _, name: client.classify("cascade", "good bad good", request_id=name),
    "pets": lambda client, _, name: client.classify("encoder", "good", task="lora_0", request_id=name),
    "otas": lambda client, observed, name: client.classify_image(
        "vision", (observed.images / "photo.png").read_bytes(), task="animals", request_id=name
    ),
    "flover": lambda client, _, name: client.generate("writer", "hello", max_tokens=5, request_id=name),
}
#: What each system adds to a line, by field.
OWN: dict[str, dict[str, Any]] = {
    "arlo": {"rows": 2, "tokens": 45, "max_length": [16, 64]},
    "tabi": {"rows": 1, "tokens": 5},
    "pets": {"rows": 1, "tokens": 3, "task": "lora_0"},
    "otas": {"rows": 1, "tokens": None, "task": "animals"},
    "flover": {"rows": 1, "tokens": 5, "generated_tokens": 5},
}
CASES = [(system, protocol) for system in ASK for protocol in ("http", "grpc")]


def ask(observed: Observed, system: str, protocol: str, name: str) -> None:
    if (system, protocol) == ("flover", "http"):  # which Client asks over gRPC alone
        body = json.dumps({"id": name, "text_input": "hello", "max_tokens": 5}).encode()
        url = f"http://{observed.served.report['http']}/v2/models/writer/generate"
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=30) as response:
            assert response.status == 200
        return
    with Client(f"{protocol}://{observed.served.report[protocol]}") as client:
        ASK[system](client, observed, name)


def lines(observed: Observed, name: str, model: str = "") -> list[dict[str, Any]]:
    """The lines of a request by its id, once there is one, or of a model."""
    assert until(lambda: any(each["id"] == name and model in ("", each["model"]) for each in observed.lines()))
    return [each for each in observed.lines() if each["id"] == name and model in ("", each["model"])]


@pytest.mark.parametrize(("system", "protocol"), CASES)
def test_the_log_has_a_line_with_what_the_system_decided(observed: Observed, system: str, protocol: str) -> None:
    name = f"{system}-{protocol}-log"
    ask(observed, system, protocol, name)
    (line,) = lines(observed, name)
    assert (line["model"], line["version"], line["code"]) == (everything.MODELS[system], 1, "OK")
    assert {key: line[key] for key in OWN[system]} == OWN[system]
    assert 0 <= line["queue_ms"] <= line["total_ms"]
    assert 0 < line["execute_ms"] <= line["total_ms"]
    if system == "tabi":
        assert line["level"] in ([1], [2])
    if system == "otas":
        assert len(line["gamma"]) == 1
    assert "from_model" not in line


def test_what_a_partitioned_model_asks_its_runtimes_is_marked(observed: Observed) -> None:
    ask(observed, "arlo", "grpc", "marked")
    lines(observed, "marked")
    inner = [each for each in lines(observed, "", "tiny_len16") if each["from_model"]]
    assert inner
    assert all(each["rows"] == 1 and each["execute_ms"] > 0 for each in inner)


def test_refused_requests_are_logged(observed: Observed) -> None:
    def refused() -> dict[str, int]:
        found = [each["model"] for each in observed.lines() if each["code"] == "INVALID_ARG"]
        return {model: found.count(model) for model in everything.MODELS.values()}

    before = refused()
    everything.ask_wrongly(observed.served.report["grpc"])
    after = {model: count + 1 for model, count in before.items()}
    assert until(lambda: refused() == after)


def test_a_cancelled_generation_is_logged(observed: Observed) -> None:
    with Client(f"grpc://{observed.served.report['grpc']}", timeout_s=20) as client:
        stream = client.generate_stream("writer", "hello", max_tokens=40, request_id="gone")
        next(iter(stream))
        stream.close()
    # It may have been done before the server saw that its client had gone.
    (line,) = lines(observed, "gone")
    assert line["code"] in ("CANCELLED", "OK")
    assert 1 <= line["generated_tokens"] <= 40


@pytest.mark.parametrize(("system", "protocol"), CASES)
def test_a_request_arrives_as_a_trace_of_three_spans(observed: Observed, system: str, protocol: str) -> None:
    sent = f"{protocol.upper()}_SEND_END"
    # tritonserver exports the span when it drops the trace, at times before its HTTP thread has recorded the sending.
    for attempt in range(10):
        name = f"{system}-{protocol}-trace-{attempt}"
        ask(observed, system, protocol, name)
        assert until(lambda name=name: len(observed.receiver.trace_of(name)) >= 3)  # type: ignore[misc]
        whole, model, compute = observed.receiver.trace_of(name)[:3]
        if sent in whole.events:
            break
    assert (whole.name, model.name, compute.name) == ("InferRequest", everything.MODELS[system], "compute")
    assert (whole.parent, model.parent, compute.parent) == ("", whole.span, model.span)
    assert {each.service for each in (whole, model, compute)} == {"tidal"}
    assert model.attributes["triton.model_name"] == everything.MODELS[system]
    assert model.attributes["triton.model_version"] == "1"
    assert {"REQUEST_START", "QUEUE_START", "REQUEST_END"} <= set(model.events)
    assert {"COMPUTE_START", "COMPUTE_END"} <= set(compute.events)
    assert sent in whole.events
    assert whole.begin <= model.begin <= compute.begin <= compute.end


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_clients_trace_goes_on_in_the_server(observed: Observed, protocol: str) -> None:
    trace, parent = f"{'ab' * 15}{len(protocol):02x}", "cd" * 8
    module = tritonclient.http if protocol == "http" else tritonclient.grpc
    text = module.InferInput("text_input", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([[b"good"]], object))
    headers = {"traceparent": f"00-{trace}-{parent}-01"}
    with contextlib.closing(module.InferenceServerClient(observed.served.report[protocol])) as client:
        client.infer("tiny", [text], headers=headers)
    assert until(lambda: len(observed.receiver.trace(trace)) >= 3)
    assert observed.receiver.trace(trace)[0].parent == parent


def test_a_refused_request_is_traced(observed: Observed) -> None:
    with Client(f"grpc://{observed.served.report['grpc']}") as client, pytest.raises(RequestError):
        client.classify("encoder", "good", task="none", request_id="refused")
    assert until(lambda: len(observed.receiver.trace_of("refused")) >= 3)
