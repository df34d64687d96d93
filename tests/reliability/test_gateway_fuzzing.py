"""Malformed requests to a gateway: the same ones for a seed, of every kind, and how their answers are judged."""

from __future__ import annotations

import random
import socket
import threading
from collections import Counter

import pytest

from reliability.fuzzing.gateway_malformed import KINDS, RawRequest, gateway_malformed
from reliability.fuzzing.gateway_sending import SILENT, FuzzResult, send_raw
from reliability.scenarios import gateway_fuzz

MODELS = ("writer", "tasks")


def test_equal_seeds_give_equal_requests() -> None:
    once, again, other = (list(gateway_malformed(seed, 300, MODELS, "k")) for seed in (1, 1, 2))
    assert once == again
    assert once != other


def test_every_kind_occurs() -> None:
    found = list(gateway_malformed(3, 2000, MODELS, "k"))
    seen = Counter(each.what.partition(" /")[0] for each in found)
    for kind in ("document", "body", "headers", "path", "form", "tensors", "no HTTP", "pipelined", "left half way"):
        assert seen[kind], kind
    assert any(b"[" * 200_000 in each.content for each in found)
    assert any(len(each.content.partition(b"\r\n\r\n")[0]) > 40_000 for each in found)
    assert any(b"multipart" in each.content for each in found)


def test_most_requests_have_the_key_and_some_have_not() -> None:
    found = [each for each in gateway_malformed(4, 1000, MODELS, "k") if each.what.startswith("document")]
    with_key = sum(b"authorization: Bearer k\r\n" in each.content for each in found)
    assert 0.8 * len(found) < with_key < len(found)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_many_forms(kind: object) -> None:
    assert callable(kind)
    assert len({kind(random.Random(seed), "tasks").content for seed in range(60)}) > 8


def test_a_full_run_is_large_enough() -> None:
    assert gateway_fuzz.MALFORMED + gateway_fuzz.GENERATED >= gateway_fuzz.MIN_REQUESTS == 10_000


def test_answers_of_5xx_and_silence_are_wrong() -> None:
    answers = {
        b"HTTP/1.1 400 x\r\nContent-Length: 2\r\n\r\n{}": "400",
        b"HTTP/1.1 500 x\r\nContent-Length: 2\r\n\r\n{}": "500",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n": "200",
        b'HTTP/1.1 504 x\r\nContent-Length: 20\r\n\r\n{"code": "deadline"} ': "504 deadline",
        b'HTTP/1.1 504 x\r\nContent-Length: 19\r\n\r\n{"code": "timeout"} ': "504",
        b"": "closed",
        # Of pipelined requests the worst answer counts.
        b"HTTP/1.1 200 x\r\nContent-Length: 0\r\n\r\nHTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n": "503",
    }
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for answer in answers:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        results = [send_raw(address, [RawRequest("x", b"GET / HTTP/1.1\r\n\r\n")]) for _ in answers]
        thread.join()
    assert [next(iter(each.ends)) for each in results] == list(answers.values())
    assert [bool(each.wrong) for each in results] == [end in ("500", "504", "503") for end in answers.values()]


def test_a_gateway_that_is_gone_or_silent_is_wrong() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        waiting = send_raw(address, [RawRequest("x", b"GET", complete=False)])
    assert (waiting.ends, waiting.wrong) == (Counter({"waiting": 1}), [])
    gone = send_raw(address, [RawRequest("x", b"GET / HTTP/1.1\r\n\r\n")])
    assert len(gone.wrong) == gone.count == 1
    silent = FuzzResult()
    silent.add("x", SILENT)
    assert len(silent.merge(gone).wrong) == 2
