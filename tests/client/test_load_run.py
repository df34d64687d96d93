"""Runs of the load generator against a real server, and their figures."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.client.conftest import ProbeServer, probe_server
from tidal_client import InvalidArgument
from tidal_client.load import LoadResult, RequestVariant, Schedule, id_inputs, parse_mix, poisson, run_load, summarise
from tidal_client.load.grpc_sender import GrpcSender
from tidal_client.load.inputs import text_inputs
from tidal_client.load.payloads import encode
from tidal_client.load.sender import Finish
from tidal_client.load.summary import LatencyFigures
from tidal_client.transports.addresses import Address, parse_url


def schedule(*texts: str, count: int | None = None, rate: float = 200.0, mix: str = "") -> Schedule:
    return Schedule(
        poisson(rate, count=count or len(texts)), text_inputs(texts), parse_mix(mix) if mix else (RequestVariant(),)
    )


def test_a_models_name_is_quoted_in_the_request_line() -> None:
    payload = encode(parse_url("http://127.0.0.1:1"), "a b/c?\r\nö", {"x": np.zeros(1, np.int64)}, None, {})
    assert payload.startswith(b"POST /v2/models/a%20b%2Fc%3F%0D%0A%C3%B6/infer HTTP/1.1\r\nHost: 127.0.0.1:1\r\n")


@pytest.mark.server
class TestRuns:
    def test_every_request_is_answered_once(self, url: str) -> None:
        plan = schedule("one", "two", "three", count=150)
        result = run_load(url, "probe", plan)
        assert result.codes == ("OK",)
        assert result.answered.all()
        assert (result.scheduled <= result.sent + 1e-9).all()
        assert (result.sent < result.done).all()
        np.testing.assert_array_equal(result.scheduled, plan.times)
        total = summarise(result).total
        assert (total.requests, total.answered, total.errors) == (150, 150, {})
        assert total.throughput == pytest.approx(150 / result.duration)

    def test_a_sender_can_keep_the_responses(self, server: ProbeServer) -> None:
        from tritonclient.grpc import service_pb2 as messages

        kept: dict[int, bytes] = {}

        def opener(address: Address, timeout_s: float, finish: Finish) -> GrpcSender:
            return GrpcSender(address.location, timeout_s, finish, keep=kept.__setitem__)

        plan = schedule("one", "error UNAVAILABLE no", "three", count=6)
        result = run_load(server.grpc, "probe", plan, outputs=["echo"], open_sender=opener)
        assert dict(summarise(result).total.errors) == {"UNAVAILABLE": 2}
        answers = {
            n: messages.ModelInferResponse.FromString(each).raw_output_contents[0][4:] for n, each in kept.items()
        }
        assert answers == {0: b"one|", 2: b"three|", 3: b"one|", 5: b"three|"}

    def test_sends_do_not_wait_for_answers(self, url: str) -> None:
        result = run_load(url, "probe", schedule("sleep 3", count=60, rate=400))
        assert result.answered.all()
        assert result.sent.max() < result.done.min()
        assert (result.latency > 2.99).all()

    def test_errors_by_code_and_timeouts(self, url: str) -> None:
        plan = schedule("hi", "error UNAVAILABLE full", "error INVALID_ARG no", "raise", "sleep 20", count=50)
        result = run_load(url, "probe", plan, timeout_s=3.0)
        total = summarise(result, slo_ms=60_000).total
        expected = {"UNAVAILABLE": 10, "INVALID_ARG": 10, "INTERNAL": 10, "DEADLINE_EXCEEDED": 10}
        assert (total.answered, total.within_slo, dict(total.errors)) == (10, 10, expected)
        assert total.violations == pytest.approx(0.8)
        assert result.messages["UNAVAILABLE"] == "full"
        assert result.messages["DEADLINE_EXCEEDED"].startswith(f"no answer from {url} within 3 s")
        late = result.status == result.codes.index("DEADLINE_EXCEEDED")
        assert (np.flatnonzero(late) % 5 == 4).all()
        assert ((result.done - result.sent)[late] >= 2.99).all()

    def test_an_unknown_model_and_a_closed_port(self, url: str, closed_port: int) -> None:
        assert summarise(run_load(url, "nope", schedule("hi", count=5))).total.errors == {"NOT_FOUND": 5}
        nobody = f"{url.partition(':')[0]}://127.0.0.1:{closed_port}"
        result = run_load(nobody, "probe", schedule("hi", count=5))
        assert summarise(result).total.errors == {"CONNECTION_FAILED": 5}
        assert result.messages["CONNECTION_FAILED"].startswith(f"no connection to {nobody}: ")
        assert summarise(result).total.latency_ms is None

    def test_options_outputs_and_texts_arrive(self, url: str) -> None:
        parameters = {"latency_ms": 70.5, "task": "é", "seed": 2**40}
        inputs = {"text_input": np.array([["hé"], ["b"]]), "text_pair": np.array([[b"x"], [b"y"]], object)}
        payload = encode(parse_url(url), "probe", inputs, ["asked", "echo"], parameters)
        found = ask(url, payload)
        assert sorted(found) == ["asked", "echo"]
        assert [bytes(v).decode() for v in found["echo"].reshape(-1)] == ["hé|x", "b|y"]
        assert json.loads(found["asked"][0, 0])["parameters"] == parameters
        everything = ask(url, encode(parse_url(url), "probe", inputs, None, {}))
        assert len(everything) == 7
        assert everything["rows"].tolist() == [[2], [2]]

    def test_answers_larger_than_a_read(self, url: str) -> None:
        result = run_load(url, "probe", schedule("x" * 600_000, count=8, rate=50), outputs=["echo"])
        assert result.answered.all()

    def test_variants_are_distinguished(self, server: ProbeServer) -> None:
        result = run_load(server.http, "probe", schedule("hi", count=200, mix="latency_ms=60000:3,latency_ms=0.001:1"))
        summary = summarise(result)
        assert sum(row.requests for row in summary.variants.values()) == 200
        patient, hasty = summary.variants["latency_ms=60000"], summary.variants["latency_ms=0.001"]
        assert patient.requests > hasty.requests > 20
        assert (patient.within_slo, hasty.within_slo) == (patient.requests, 0)
        assert summary.total.within_slo == patient.requests
        assert summarise(result, slo_ms=60_000).total.within_slo == 200

    def test_an_impossible_schedule_is_reported_as_a_bottleneck(self, server: ProbeServer) -> None:
        result = run_load(server.http, "probe", schedule("hi", count=3000, rate=1e7))
        generator = summarise(result, late_ms=1.0).generator
        assert "the generator was a bottleneck" in generator.warning
        assert generator.late_share > 0.01
        assert result.answered.all()

    def test_progress_ends_with_everything(self, url: str) -> None:
        seen: list[tuple[int, int]] = []
        run_load(url, "probe", schedule("hi", count=80, rate=100), progress=lambda *now: seen.append(now))
        assert seen == sorted(seen)
        assert len(seen) > 1
        assert seen[-1] == (80, 80)

    @pytest.mark.parametrize("protocol", ["grpc", "http"])
    def test_a_killed_server_ends_every_request(self, tmp_path: Path, protocol: str) -> None:
        with probe_server(tmp_path) as started:

            def kill(sent: int, ended: int) -> None:
                if sent == 20 and ended == 0:
                    os.kill(started.pid, signal.SIGKILL)

            result = run_load(
                started.url(protocol), "probe", schedule("sleep 60", count=20), timeout_s=100, progress=kill
            )
        assert summarise(result).total.errors == {"CONNECTION_FAILED": 20}


def ask(url: str, payload: bytes) -> dict[str, Any]:
    """The response to an encoded request, decoded by tritonclient."""
    address = parse_url(url)
    if address.protocol == "grpc":
        import grpc
        from tritonclient.grpc import InferResult, service_pb2

        with grpc.insecure_channel(address.location) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            result = InferResult(service_pb2.ModelInferResponse.FromString(call(payload, timeout=30)))
        return {o.name: result.as_numpy(o.name) for o in result.get_response().outputs}
    from tritonclient.http import InferResult

    host, _, port = address.location.partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(payload)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        result = InferResult.from_response_body(
            answer.read(), header_length=int(answer.headers["Inference-Header-Content-Length"])
        )
    return {o["name"]: result.as_numpy(o["name"]) for o in result.get_response()["outputs"]}


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@contextmanager
def odd_server(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that answers each request of a connection with a function until that closes the connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while connection.fileno() >= 0 and connection.recv(1 << 16):
                answer(connection)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    with listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


class TestConnections:
    """Responses and closed connections of servers and proxies."""

    def test_an_answer_in_pieces(self) -> None:
        def dribble(connection: socket.socket) -> None:
            for at in range(0, len(ANSWER), 9):
                connection.sendall(ANSWER[at : at + 9])
                time.sleep(0.002)

        with odd_server(dribble) as url:
            assert run_load(url, "m", schedule("a", count=20)).answered.all()

    def test_connections_that_are_closed_after_each_answer_are_replaced(self) -> None:
        def once(connection: socket.socket) -> None:
            connection.sendall(ANSWER)
            connection.close()

        with odd_server(once) as url:
            answered = run_load(url, "m", schedule("a", count=60, rate=100)).answered
        # A request in flight on a connection that is being closed is not sent again: some may fail, more of them the
        # busier the machine is. Without replacement one would be answered.
        assert answered.sum() >= 30

    def test_a_connection_that_breaks_within_an_answer(self) -> None:
        def broken(connection: socket.socket) -> None:
            connection.sendall(ANSWER[:-1])
            connection.close()

        with odd_server(broken) as url:
            assert summarise(run_load(url, "m", schedule("a", count=20))).total.errors == {"CONNECTION_FAILED": 20}

    @pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\n\r\n", b"nonsense\r\n\r\n"])
    def test_an_answer_that_cannot_be_read(self, answer: bytes) -> None:
        with odd_server(lambda connection: connection.sendall(answer)) as url:
            assert summarise(run_load(url, "m", schedule("a", count=5))).total.errors == {"CONNECTION_FAILED": 5}

    def test_a_proxys_error_page(self) -> None:
        page = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 4\r\n\r\noops"
        with odd_server(lambda connection: connection.sendall(page)) as url:
            result = run_load(url, "m", schedule("a", count=5))
        assert summarise(result).total.errors == {"UNAVAILABLE": 5}
        assert result.messages == {"UNAVAILABLE": "oops"}


def made_result(**changes: Any) -> LoadResult:
    rng = np.random.default_rng(1)
    count = 1000
    scheduled = np.sort(rng.uniform(0, 9.9, count))
    sent = scheduled + 0.001
    fields: dict[str, Any] = {
        "scheduled": scheduled,
        "sent": sent,
        "done": sent + rng.gamma(2, 0.01, count),
        "status": np.zeros(count, np.intp),
        "codes": ("OK", "UNAVAILABLE"),
        "messages": {"UNAVAILABLE": "full"},
        "variants": np.zeros(count, np.intp),
        "mix": (RequestVariant(),),
        "cpu_s": 0.1,
        "started": 0.0,
        "resent": np.zeros(count, np.intp),
    }
    return LoadResult(**fields | changes)


def expected_latency(seconds: np.ndarray[Any, Any]) -> LatencyFigures:
    ms = seconds * 1000
    return LatencyFigures(ms.mean(), *(float(np.percentile(ms, p)) for p in (50, 98, 99)), ms.max())


class TestFigures:
    def test_latencies_are_numpys_percentiles_of_answers(self) -> None:
        status = (np.arange(1000) % 4 == 0).astype(np.intp)
        result = made_result(status=status)
        total = summarise(result, slo_ms=30).total
        answered = status == 0
        for found, start in ((total.latency_ms, result.scheduled), (total.latency_from_send_ms, result.sent)):
            wanted = expected_latency((result.done - start)[answered])
            assert found is not None
            for name in ("mean", "p50", "p98", "p99", "max"):
                assert getattr(found, name) == pytest.approx(getattr(wanted, name))
        within = int(((result.done - result.scheduled)[answered] <= 0.03).sum())
        assert (total.answered, total.within_slo, dict(total.errors)) == (750, within, {"UNAVAILABLE": 250})
        assert total.goodput == pytest.approx(within / result.done.max())
        assert total.violations == pytest.approx(1 - within / 1000)

    def test_delay_in_the_generator_counts_as_latency(self) -> None:
        scheduled = np.linspace(0, 1, 1000)
        sent = np.maximum(scheduled, 0.5)  # it stalled for half a second
        summary = summarise(made_result(scheduled=scheduled, sent=sent, done=sent + 0.001))
        assert summary.total.latency_ms is not None
        assert summary.total.latency_ms.max == pytest.approx(501)
        assert summary.total.latency_from_send_ms is not None
        assert summary.total.latency_from_send_ms.max == pytest.approx(1)
        assert summary.generator.send_lag_ms.max == pytest.approx(500)
        assert "49." in summary.generator.warning

    def test_a_generator_that_is_busy_or_not(self) -> None:
        assert summarise(made_result()).generator.warning == ""
        busy = summarise(made_result(cpu_s=9.9)).generator
        assert "of a core" in busy.warning
        assert "bottleneck" in busy.warning

    def test_goodput_requires_a_limit_for_every_request(self) -> None:
        mix = parse_mix("latency_ms=30,task=a")
        variants = np.arange(1000) % 2
        summary = summarise(made_result(mix=mix, variants=variants))
        assert summary.total.goodput is None
        assert summary.variants["latency_ms=30"].goodput is not None
        assert summary.variants["task=a"].goodput is None
        json.dumps(summary.as_json())


@pytest.mark.parametrize(
    ("url", "model", "inputs", "message"),
    [
        ("ftp://x", "m", id_inputs([4]), "url 'ftp://x'"),
        ("http://127.0.0.1:1", "", id_inputs([4]), "model: expected"),
        ("http://127.0.0.1:1", "m", [{"x": np.array([[1j]])}], "input 'x': Triton has no datatype"),
    ],
)
def test_invalid_inputs_are_refused(url: str, model: str, inputs: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        run_load(url, model, Schedule(poisson(1, count=1), inputs))
