"""Hostile requests: the same ones for a seed, of every kind, and of bodies that are only views of shared memory."""

from __future__ import annotations

import random
import socket
import threading
from collections import Counter

import pytest

from reliability.fuzzing import hostile_grpc, hostile_http
from reliability.fuzzing.buffers import PATTERNS, noise, repeated, whole
from reliability.fuzzing.flooding import ABANDONED, CLOSED, UNREACHABLE, flood_http
from reliability.fuzzing.hostile_http import CONTENT_TYPES, LARGE, HostileHttpRequest
from reliability.scenarios.hostile import _GRPC, _HTTP, _HTTP_CLIENTS, MIN_HOSTILE, MIN_LARGE

MODELS = ("engine", "images", "tasks", "writer")


def floods(seed: int, small: int = 300, big: int = 30) -> list[HostileHttpRequest]:
    return list(hostile_http.hostile_http(seed, small, big, MODELS))


def test_equal_seeds_give_equal_requests() -> None:
    once, again, other = floods(1), floods(1), floods(2)
    assert once == again
    assert once != other
    messages = [list(hostile_grpc.hostile_grpc(seed, 200, 2, MODELS)) for seed in (1, 1, 2)]
    assert messages[0] == messages[1] != messages[2]


def test_every_kind_occurs_and_every_content_type() -> None:
    found = floods(3, 800, 100)
    seen = Counter(flood.what for flood in found)
    kinds = ("content type", "chunked", "chunked wrongly", "headers", "deep JSON", "many of one thing", "huge shape",
             "long option", "slow", "large", "large noise", "large text", "large, chunked", "large, abandoned",
             "large, elsewhere")  # fmt: skip
    assert set(seen) == set(kinds)
    for kind in CONTENT_TYPES:
        line = b"\r\n" if kind is None else b"\r\nContent-Type: " + kind.encode() + b"\r\n"
        assert any(line in flood.head for flood in found), kind
    assert any(b"Content-Type" not in flood.head for flood in found)
    depths = {bytes(part).count(b"[") for flood in found if flood.what == "deep JSON" for part in flood.body.parts}
    assert max(depths) >= 100_000
    assert max(flood.body.size for flood in found) >= 128_000_000
    grpc = Counter(message.what for message in hostile_grpc.hostile_grpc(3, 200, 20, MODELS))
    assert len(grpc) == len(hostile_grpc.SMALL_KINDS) + 2


def test_a_full_run_is_large_enough() -> None:
    """As many as are promised leave after half a body, which may be below 4 MB."""
    sent = [flood for client in range(_HTTP_CLIENTS) for flood in floods(31_000 + client, *_HTTP)]
    large = sum(flood.body.size > LARGE for flood in sent)
    assert len(sent) + sum(_GRPC) >= MIN_HOSTILE
    assert large + _GRPC[1] >= MIN_LARGE


class TestBodies:
    @pytest.mark.parametrize("pattern", PATTERNS)
    def test_are_a_pattern_of_the_size(self, pattern: str) -> None:
        body = repeated(pattern, 3_000_001, b"<", b">")
        content = b"".join(body.parts)
        assert len(content) == body.size == 3_000_003
        assert content[1:-1] == (PATTERNS[pattern] * 3_000_001)[:3_000_001]

    def test_share_one_buffer(self) -> None:
        first, second = (repeated("letters", 100_000_000).parts for _ in range(2))
        assert {part.obj for part in first} == {part.obj for part in second}
        assert len({id(part.obj) for part in first}) == 1

    def test_of_noise_are_the_same_for_a_seed(self) -> None:
        bodies = [b"".join(noise(random.Random(seed), 2_500_000).parts) for seed in (1, 1, 2)]
        assert bodies[0] == bodies[1] != bodies[2]
        assert len(bodies[0]) == 2_500_000

    def test_halves_are_the_whole(self) -> None:
        body = repeated("numbers", 5_000_001)
        first, second = body.halves()
        assert b"".join((*first.parts, *second.parts)) == b"".join(body.parts)
        assert abs(first.size - second.size) <= 1


def test_outcomes_of_requests() -> None:
    flood = HostileHttpRequest("x", b"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\n", whole(b"a"))
    leaving = HostileHttpRequest("x", flood.head, flood.body, waits=False)
    answers = [b"HTTP/1.1 413 Too Large\r\n\r\n", b"", b""]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def serve() -> None:
            for answer in answers:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        found = flood_http(f"127.0.0.1:{port}", iter([flood, flood, leaving]))
        thread.join()
    found += flood_http(f"127.0.0.1:{port}", iter([flood]))
    assert [outcome.end for outcome in found] == ["413", CLOSED, ABANDONED, UNREACHABLE]
    assert [outcome.unanswered for outcome in found] == [False, False, False, True]
