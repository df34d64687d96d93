"""Spans of the backends: one trace through gateway, server and backend, for a model of each system."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testing.gateways import RunningGateway, running_gateway
from testing.serving import Served, serving
from testing.waiting import until
from tests.deploy import everything
from tests.deploy.otlp import Receiver, Span, receiving
from tidal_client import Client

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

PARENT = "cd" * 8


@dataclass(frozen=True)
class Traced:
    served: Served
    gateway: RunningGateway
    receiver: Receiver
    image: bytes

    def spans(self, trace: str, system: str, *others: str) -> list[Span]:
        """The spans of a trace once those of a system's model, and others of these names or services, have arrived."""
        wanted = {f"{system} {everything.MODELS[system]}", *others}

        def missing() -> set[str]:
            found = self.receiver.trace(trace)
            return wanted - {each.name for each in found} - {each.service for each in found if each.name == "executed"}

        assert until(lambda: not missing(), 30), missing()
        return self.receiver.trace(trace)


@pytest.fixture(scope="module")
def traced(everything_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    folder = tmp_path_factory.mktemp("traced")
    with receiving() as receiver, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        url = receiver.url.removesuffix("/v1/traces")
        options = ("--otlp-endpoint", url, "--trace-ratio", "0", "--exit-timeout", "10")
        with (
            serving(everything_folder / "models", folder / "runtime", *options) as served,
            running_gateway(folder, "--server", served.report["grpc"], "--otlp-endpoint", url) as gateway,
        ):
            assert until(gateway.ready, 60)
            image = (everything_folder / "images" / "photo.png").read_bytes()
            yield Traced(served, gateway, receiver, image)


@pytest.mark.parametrize("system", everything.MODELS)
def test_one_trace_through_gateway_and_backend(traced: Traced, system: str) -> None:
    trace, model = f"{list(everything.MODELS).index(system) + 1:032x}", everything.MODELS[system]
    document: dict[str, Any] = {"model": model, "input": "good bad good"}
    if system == "pets":
        document["task"] = "lora_0"
    if system == "otas":
        sent = {"image": base64.b64encode(traced.image).decode()}
        document = {"model": model, "task": "animals", "input": sent}
    path = "/v1/classify"
    if system == "flover":
        path, document = "/v1/completions", {"model": model, "prompt": "good", "max_tokens": 5}
    headers = {"traceparent": f"00-{trace}-{PARENT}-01"}
    answer = traced.gateway.post(path, document, headers=headers)
    assert answer.status_code == 200, answer.text
    inner_name = ["engine tiny_len16"] if system == "arlo" else []
    spans = traced.spans(trace, system, "tidal-gateway", *inner_name)
    (call,) = [each for each in spans if each.name == "executed" and each.service == "tidal-gateway"]
    (own,) = [each for each in spans if each.name == f"{system} {model}"]
    assert (own.service, own.parent) == ("tidal", call.span)
    assert call.begin <= own.begin <= own.end
    assert own.attributes["tidal.code"] == "OK"
    parts = [each for each in spans if each.parent == own.span and each.name in ("queued", "executed", "answered")]
    assert [each.name for each in parts][:1] == ["queued"]
    assert {each.name for each in parts} == {"queued", "executed", "answered"}
    assert all(own.begin <= each.begin <= each.end <= own.end for each in parts)
    executed = next(each for each in parts if each.name == "executed")
    assert executed.attributes["tidal.model"] in (model, "small", "large") or system == "tabi"
    assert int(executed.attributes["tidal.batch_rows"]) >= 1
    if system != "otas":
        assert int(own.attributes["gen_ai.usage.input_tokens"]) >= 1
    if system == "arlo":  # its runtimes are models of their own, whose spans are inside
        inner = [each for each in spans if each.name.startswith("engine tiny_len")]
        assert [each.parent for each in inner] == [own.span]
    if system in ("pets", "otas"):
        assert executed.attributes["tidal.task"] == document["task"]
    if system == "flover":
        assert own.attributes["gen_ai.usage.output_tokens"] == "5"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_client_without_a_gateway(traced: Traced, protocol: str) -> None:
    trace = f"{len(protocol):02x}" * 16
    with Client(f"{protocol}://{traced.served.report[protocol]}") as client:
        # Without a context none is traced, with a malformed one neither; and both are answered.
        client.classify("tiny", "good", request_id="plain")
        client.classify("tiny", "good", request_id="malformed", traceparent="nonsense")
        client.classify("tiny", "good", traceparent=f"00-{trace}-{PARENT}-00", request_id="unsampled")
        client.classify("tiny", "good", traceparent=f"00-{trace}-{PARENT}-01", request_id="traced")
    spans = traced.spans(trace, "arlo")
    own = [each for each in spans if each.name == "arlo tiny"]
    assert [each.attributes["tidal.request_id"] for each in own] == ["traced"]
    assert own[0].parent == PARENT
