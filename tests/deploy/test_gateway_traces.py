"""Traces of requests through the gateway: a client's goes on there, in the server, and in its backends."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator

import pytest

from testing.gateways import RunningGateway, running_gateway
from testing.waiting import until
from tests.deploy import everything
from tests.deploy.conftest import Observed
from tests.deploy.otlp import Span

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

PARENT = "cd" * 8
SERVICE = "tidal-gateway"


@pytest.fixture(scope="module")
def traced(observed: Observed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder = tmp_path_factory.mktemp("traced")
    url = observed.receiver.url.removesuffix("/v1/traces")
    options = ["--server", observed.served.report["grpc"], "--otlp-endpoint", url, "--trace-ratio", "0"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        with running_gateway(folder, *options) as gateway:
            assert until(gateway.ready, 60), (folder / "stderr").read_text()
            yield gateway


def arrive(observed: Observed, trace: str, count: int, seconds: float = 60.0) -> bool:
    """Whether that many spans of a trace arrive, with the gateway's own."""

    def arrived() -> bool:
        found = observed.receiver.trace(trace)
        roots = [each for each in found if each.service == SERVICE and each.parent == PARENT]
        return len(found) >= count and bool(roots)

    return until(arrived, seconds)


def spans_of(observed: Observed, trace: str, count: int) -> dict[str, Span]:
    """The spans of the gateway by name, with those of the server as `server`, `model` and `compute`."""
    assert arrive(observed, trace, count), observed.receiver.trace(trace)
    found = {}
    for each in observed.receiver.trace(trace):
        name = each.name
        if each.service == SERVICE and each.parent == PARENT:
            name = "request"
        elif each.service != SERVICE:
            name = {"InferRequest": "server", "compute": "compute"}.get(each.name, "model")
        assert name not in found
        found[name] = each
    return found


def headers(trace: str, sampled: bool = True) -> dict[str, str]:
    return {"traceparent": f"00-{trace}-{PARENT}-0{int(sampled)}", "x-request-id": f"traced-{trace[:8]}"}


def test_a_clients_trace_goes_on_in_gateway_server_and_backend(traced: RunningGateway, observed: Observed) -> None:
    trace, model = "1a" * 16, everything.MODELS["arlo"]
    answer = traced.post("/v1/classify", {"model": model, "input": "good bad"}, headers=headers(trace))
    assert answer.status_code == 200
    found = spans_of(observed, trace, 8)
    steps = [found[name] for name in ("accepted", "queued", "executed", "answered")]
    assert {each.parent for each in steps} == {found["request"].span}
    for earlier, later in itertools.pairwise(steps):
        assert earlier.begin <= earlier.end <= later.end
        assert earlier.begin <= later.begin
    assert found["request"].begin <= steps[0].begin
    assert steps[-1].end <= found["request"].end
    assert found["server"].parent == found["executed"].span
    assert (found["model"].parent, found["compute"].parent) == (found["server"].span, found["model"].span)
    # The server's span ends when it has sent its answer, which the gateway may have received before.
    assert found["executed"].begin <= found["server"].begin <= found["executed"].end
    attributes = found["request"].attributes
    assert (attributes["tidal.model"], attributes["http.response.status_code"]) == (model, "200")
    assert attributes["tidal.request_id"] == found["model"].attributes["triton.request_id"] == f"traced-{trace[:8]}"
    assert found["executed"].attributes["server.address"] == observed.served.report["grpc"]


def test_a_stream_is_traced_to_its_last_part(traced: RunningGateway, observed: Observed) -> None:
    """Exporters drop spans that a receiver on a busy machine does not take in time: then a later stream is traced."""
    document = {"model": everything.MODELS["flover"], "prompt": "good", "max_tokens": 20, "stream": True}
    for digits in ("2b", "2c", "2d"):
        trace = digits * 16
        assert "[DONE]" in traced.post("/v1/completions", document, headers=headers(trace)).text
        if arrive(observed, trace, 8, 20):
            break
    found = spans_of(observed, trace, 8)
    executed, answered = found["executed"], found["answered"]
    assert executed.begin < answered.begin < executed.end <= answered.end
    assert found["server"].parent == executed.span


def test_a_refused_request_has_no_execution(traced: RunningGateway, observed: Observed) -> None:
    trace = "3c" * 16
    answer = traced.post("/v1/classify", {"model": "nope", "input": "x"}, headers=headers(trace))
    assert answer.status_code == 404
    found = spans_of(observed, trace, 3)
    assert set(found) == {"request", "accepted", "answered"}
    assert found["request"].attributes["error.type"] == "model_not_found"


def test_unsampled_requests_are_not_exported(traced: RunningGateway, observed: Observed) -> None:
    """Neither those of clients that say so, nor, with a ratio of 0, those without a trace."""
    unsampled, last = "4d" * 16, "5e" * 16
    document = {"model": everything.MODELS["arlo"], "input": "good"}
    assert traced.post("/v1/classify", document, headers=headers(unsampled, sampled=False)).status_code == 200
    assert traced.post("/v1/classify", document, headers={"x-request-id": "no-trace"}).status_code == 200
    assert traced.post("/v1/classify", document, headers={"traceparent": "nonsense"}).status_code == 200
    assert traced.post("/v1/classify", document, headers=headers(last)).status_code == 200
    spans_of(observed, last, 5)  # the gateway's own: those of the requests before would have arrived with them
    assert [each for each in observed.receiver.trace(unsampled) if each.service == SERVICE] == []
    assert [each for each in observed.receiver.trace_of("no-trace") if each.service == SERVICE] == []


def test_nothing_of_opentelemetrys_sdk_is_imported_without_a_receiver() -> None:
    code = (
        "import sys; from tidal_gateway.app import create_app; from tidal_gateway.settings import GatewaySettings\n"
        "create_app(GatewaySettings(server=('127.0.0.1:1',)))\n"
        "sys.exit(any(name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
