"""Requests of the benchmark of encoders, their answers, and the loops that send them."""

from __future__ import annotations

import base64
import gzip
import json
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from benchmarks.encoders import formats
from benchmarks.encoders.load import closed_loop, open_loop, sender_to
from benchmarks.encoders.source import LONGEST, TASKS
from benchmarks.encoders.workload import Rows, Traffic, Workload
from demo.train import minilm_folder

TOKENIZER = minilm_folder() / "tokenizer.json"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    found = Tokenizer.from_file(str(TOKENIZER))
    found.no_padding()
    found.no_truncation()
    return found


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("lengths", ["tweets", "documents"])
def test_no_text_is_longer_than_the_limit_and_none_comes_twice(
    workload: Workload, tokenizer: Tokenizer, task: Any, lengths: Any
) -> None:
    requests = workload.requests(Traffic(task, lengths), 200, seed=1)
    rows = [row for each in requests for row in each]
    counts = [len(tokenizer.encode(*([row] if isinstance(row, str) else row)).ids) for row in rows]
    assert len(rows) == len(set(rows)) == 200
    assert max(counts) <= LONGEST
    assert (np.median(counts) > 100) == (lengths == "documents")


def test_equal_seeds_give_equal_requests_and_others_differ(workload: Workload) -> None:
    traffic = Traffic("rerank", "documents", 3)
    first = workload.requests(traffic, 5, seed=1)
    assert first == workload.requests(traffic, 5, seed=1)
    assert not {row for rows in first for row in rows} & {
        row for rows in workload.requests(traffic, 5, seed=2) for row in rows
    }
    for rows in first:
        assert len({query for query, _ in rows}) == 1
        assert len(rows) == 3


def test_lengths_of_documents_are_those_of_the_data(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "xquad").mkdir()
    paragraphs = [{"context": "one two three four", "qas": [{"question": "what is that"}]}]
    with gzip.open(tmp_path / "xquad" / "en.json.gz", "wt") as file:
        json.dump({"data": [{"paragraphs": paragraphs}]}, file)
    workload = Workload(TOKENIZER, tmp_path)
    for rows in workload.requests(Traffic("rerank", "documents"), 5, seed=1):
        ((query, document),) = rows
        assert (len(tokenizer.encode(query).ids), len(tokenizer.encode(document).ids)) == (5, 6)
    assert "no --data" not in workload.origin("documents")
    assert "no --data" in Workload(TOKENIZER, None).origin("documents")


def body_of(request: bytes) -> Any:
    return json.loads(request.partition(b"\r\n\r\n")[2])


def test_answers_of_infinity_are_in_the_order_of_the_request() -> None:
    vectors = np.eye(2, dtype=np.float32)
    body = json.dumps({"data": [{"embedding": base64.b64encode(each.tobytes()).decode()} for each in vectors]})
    np.testing.assert_array_equal(formats.read_infinity(body.encode(), 2), vectors)
    results = [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.2}]
    found = formats.read_infinity(json.dumps({"results": results}).encode(), 2)
    np.testing.assert_array_equal(found, [[0.2], [0.9]])


def test_requests_hold_the_same_rows_for_every_server() -> None:
    pairs: Rows = [("query", "first"), ("query", "second")]
    plain = body_of(formats.plain_request("host:1", "rerank", pairs))
    assert plain == {"rows": [["query", "first"], ["query", "second"]]}
    infinity = body_of(formats.infinity_request("host:1", "rerank", pairs))
    assert (infinity["query"], infinity["documents"]) == ("query", ["first", "second"])
    inputs = formats.tidal_inputs(pairs)
    assert inputs["text_pair"].tolist() == [[b"first"], [b"second"]]
    assert formats.tidal_request("host:1", "rerank", pairs).startswith(b"POST /v2/models/minilm_rerank_fp32/infer ")
    texts = body_of(formats.infinity_request("host:1", "embed", ["a", "b"]))
    assert (texts["input"], texts["encoding_format"]) == (["a", "b"], "base64")
    assert list(formats.tidal_inputs(["a"])) == ["text_input"]


def test_a_request_with_two_queries_is_an_error() -> None:
    with pytest.raises(ValueError, match="a request has one query, got 2"):
        formats.query_and_documents([("a", "x"), ("b", "y")])


def test_plain_answers_are_read_as_float32() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(formats.read_plain(values.tobytes(), 2), values)


class _Answering(BaseHTTPRequestHandler):
    """Answers after a while, and not before `gather` requests have arrived; those whose text is `fail` get an error."""

    protocol_version = "HTTP/1.1"
    # Head and content are two segments; Nagle's algorithm would hold the second one back for 40 ms.
    disable_nagle_algorithm = True
    lock, now, most, seen = threading.Lock(), 0, 0, list[Any]()
    gather, gathered = 1, threading.Event()

    def do_POST(self) -> None:
        row = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["rows"][0]
        kind = type(self)
        with kind.lock:
            kind.now += 1
            kind.most = max(kind.most, kind.now)
            kind.seen.append(row)
            if len(kind.seen) >= kind.gather:
                kind.gathered.set()
        kind.gathered.wait(20)
        time.sleep(0.005)
        with kind.lock:
            kind.now -= 1
        content = np.float32(len(row)).tobytes()
        self.send_response(500 if row == "fail" else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    # A sender opens 16 connections at once; those that the default of 5 refuses are tried again after a second.
    request_queue_size = 32


@pytest.fixture
def server() -> Iterator[tuple[str, type[_Answering]]]:
    handler = type(
        "_Handler",
        (_Answering,),
        {"lock": threading.Lock(), "now": 0, "most": 0, "seen": [], "gathered": threading.Event()},
    )
    running = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"127.0.0.1:{running.server_port}", handler
    running.shutdown()
    running.server_close()
    thread.join()


def _payloads(location: str, texts: Sequence[str]) -> list[bytes]:
    return [formats.plain_request(location, "embed", [text]) for text in texts]


def test_a_closed_loop_keeps_its_requests_in_flight_and_sends_each_once(server: tuple[str, type[_Answering]]) -> None:
    location, handler = server
    handler.gather = 4
    texts = [f"text {number}" for number in range(60)]
    found = closed_loop(sender_to(location), _payloads(location, texts), in_flight=4, seconds=20.0)
    assert handler.most == 4
    assert sorted(handler.seen) == sorted(texts)
    assert found.failed == 0
    assert 55 <= len(found.latencies_ms) <= 60
    assert found.seconds < 20
    assert found.per_second == pytest.approx(len(found.latencies_ms) / found.seconds)
    assert found.latencies_ms.min() >= 5


def test_answers_before_the_measurement_do_not_count(server: tuple[str, type[_Answering]]) -> None:
    location, handler = server
    payloads = _payloads(location, [f"text {number}" for number in range(4000)])
    found = closed_loop(sender_to(location), payloads, in_flight=2, seconds=0.3, warm_s=1.2)
    assert 0 < len(found.latencies_ms) < len(handler.seen) / 2
    assert found.seconds == pytest.approx(0.3)


def test_a_measurement_with_few_answers_is_lengthened_up_to_a_bound(server: tuple[str, type[_Answering]]) -> None:
    location, _ = server
    payloads = _payloads(location, [f"text {number}" for number in range(2000)])
    found = closed_loop(sender_to(location), payloads, in_flight=2, seconds=0.05, least=80)
    assert 0.05 < found.seconds < 0.4001
    assert found.seconds / 0.05 == pytest.approx(round(found.seconds / 0.05))
    bounded = closed_loop(sender_to(location), payloads, in_flight=1, seconds=0.05, least=10_000)
    assert 0.05 < bounded.seconds < 0.4001


def test_failed_requests_are_counted_with_their_message(server: tuple[str, type[_Answering]]) -> None:
    location, _ = server
    texts = [f"text {number}" if number % 3 else "fail" for number in range(30)]
    found = closed_loop(sender_to(location), _payloads(location, texts), in_flight=3, seconds=20.0)
    assert found.failed in range(8, 11)
    assert found.error
    opened = open_loop(sender_to(location), _payloads(location, texts), np.arange(30) / 200, drain_s=5.0)
    assert (opened.failed, len(opened.latencies_ms)) == (10, 20)


def test_an_open_loop_measures_from_the_scheduled_time(server: tuple[str, type[_Answering]]) -> None:
    location, handler = server
    texts = [f"text {number}" for number in range(20)]
    found = open_loop(sender_to(location), _payloads(location, texts), np.arange(20) / 100, drain_s=5.0)
    assert sorted(handler.seen) == sorted(texts)
    assert (found.failed, len(found.latencies_ms)) == (0, 20)
    assert found.latencies_ms.min() >= 5
    assert found.seconds >= 0.19


def test_a_server_is_asked_for_values_and_its_error_is_reported(server: tuple[str, type[_Answering]]) -> None:
    location, _ = server
    found = formats.ask(location, "embed", ["four"], formats.plain_request, formats.read_plain)
    assert found.tolist() == [[4.0]]
    with pytest.raises(RuntimeError, match=f"{location} answered 500"):
        formats.ask(location, "embed", ["fail"], formats.plain_request, formats.read_plain)
