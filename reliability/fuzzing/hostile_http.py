"""HTTP requests that try to exhaust a server: by size, chunks, headers or the depth of their JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import cache

from reliability.fuzzing.buffers import PATTERNS, RequestBody, noise, repeated, whole
from reliability.fuzzing.mutations import valid
from reliability.fuzzing.wire import to_http

LARGE = 4_000_000
#: Content types: curl's default, forms, text, JSON in several spellings, none, and invalid ones.
CONTENT_TYPES: tuple[str | None, ...] = (
    "application/x-www-form-urlencoded", "text/plain", "application/octet-stream", None, "application/json",
    "application/json; charset=utf-8", "application/json;charset=utf-16", "multipart/form-data; boundary=x",
    "multipart/form-data", "application/xml", "image/png", "x" * 4000, "", "application/x-www-form-urlencoded; a=b",
)  # fmt: skip
_MULTIPART = b'--x\r\nContent-Disposition: form-data; name="f"\r\n\r\n'
# Sizes of bodies above 4 MB, bytes; the largest are rare, because they take seconds.
_SIZES = [4_200_000] * 40 + [5_000_000] * 40 + [16_000_000] * 8 + [64_000_000] * 3 + [128_000_000] * 2
_DEPTHS = (10, 1_000, 10_000, 100_000)
# A form of many short fields costs tritonserver 33 bytes of memory per byte.
_MAX_FIELDS_BYTES = 8_000_000
# Ten thousand options take tritonserver 1.5 s.
_COUNTS = (100,) * 6 + (1_000,) * 3 + (10_000,)
# Elements of INT64 that a shape declares, at 8 bytes each. An unprotected tritonserver 2.51 allocates them before it
# reads the data: 2 GiB take it 14 s, and 64 GiB end it.
_DECLARED = (10_000, 1_000_000, 4_000_000, 1 << 28, 1 << 33, 1 << 62)


@dataclass(frozen=True, slots=True)
class HostileHttpRequest:
    """An HTTP request for a connection of its own.

    Attributes:
        what: Kind of the request, for the report.
        head: Request line and headers, including the blank line.
        body: Body, framed if it is chunked.
        pause_s: Pause between the parts of the body, seconds.
        waits: Whether the client waits for an answer; otherwise it disconnects after the body.
    """

    what: str
    head: bytes
    body: RequestBody
    pause_s: float = 0.0
    waits: bool = True


Kind = Callable[[random.Random, str], HostileHttpRequest]


def content_type(draw: random.Random, model: str) -> HostileHttpRequest:
    """Make a request with a valid or broken body and any content type."""
    body = draw.choice((_valid_json(model), _valid_json(model)[:-3], b"", b"{}", b"a=b&c=d", _MULTIPART))
    return _post("content type", model, whole(body), draw.choice(CONTENT_TYPES))


def chunked(draw: random.Random, model: str) -> HostileHttpRequest:
    """Make a request in chunks of one byte, in unusual chunks, or in chunks with wrong framing."""
    content = draw.choice((_valid_json(model), b"a" * draw.choice((100, 1_000, 20_000))))
    match draw.randrange(4):
        case 0:
            body = b"".join(_chunk(content[at : at + 1]) for at in range(len(content))) + b"0\r\n\r\n"
        case 1:
            wrong = draw.choice((b"fffffffffffffffff\r\n", b"-1\r\n", b"zz\r\n", b"\r\n", b"0;x=" + content))
            body = _chunk(content) + wrong
            # tritonserver answers none of these: it waits for more.
            return replace(_chunks("chunked wrongly", model, whole(body), None), waits=False)
        case 2:
            body = b"%x;name=%s\r\n" % (len(content), b"v" * 500) + content + b"\r\n0\r\nTrailer: x\r\n\r\n"
        case _:
            body = _chunk(content) * draw.choice((1, 50, 500)) + b"0\r\n\r\n"
    return _chunks("chunked", model, whole(body), draw.choice(CONTENT_TYPES[:6]))


def headers(draw: random.Random, model: str) -> HostileHttpRequest:
    """Make a request with many, long or contradictory headers."""
    body = _valid_json(model)
    match draw.randrange(5):
        case 0:
            added = _many_headers(draw.choice((100, 1_000, 10_000)))
        case 1:
            added = b"X-Long: " + b"y" * draw.choice((1_000, 60_000, 1_000_000)) + b"\r\n"
        case 2:
            added = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"
        case 3:
            added = b"Inference-Header-Content-Length: " + draw.choice((b"9" * 5000, b"-1", b"0", b"1e9")) + b"\r\n"
        case _:
            added = draw.choice((b"X" * 70_000 + b": y\r\n", b": y\r\n", b"\x00: y\r\n", b"Content-Encoding: gzip\r\n"))
    return _post("headers", model, whole(body), "application/json", added)


def deep_json(draw: random.Random, model: str) -> HostileHttpRequest:
    """Make a request with JSON nested up to 100,000 levels, closed or not, at any position."""
    depth = draw.choice(_DEPTHS)
    nested = draw.choice((b"[" * depth + b"]" * depth, b"[" * depth, b'{"a":' * depth + b"1" + b"}" * depth))
    around = draw.choice((
        b'%s', b'{"inputs":%s}', b'{"parameters":{"task":%s},"inputs":[]}', b'{"outputs":[%s],"inputs":[]}',
        b'{"inputs":[{"name":"text_input","shape":%s,"datatype":"BYTES","data":["a"]}]}',
        b'{"inputs":[{"name":"text_input","shape":[1,1],"datatype":"BYTES","data":%s}]}',
        b'{"text_input":%s}',
    ))  # fmt: skip
    return _post("deep JSON", model, whole(around.replace(b"%s", nested)), "application/json", path=_path(draw, model))


def many(draw: random.Random, model: str) -> HostileHttpRequest:
    """Make a request with up to ten thousand inputs, outputs, options, axes or rows."""
    body = _many(draw.randrange(6), draw.choice(_COUNTS))
    return _post("many of one thing", model, whole(body), "application/json")


def huge_shape(draw: random.Random, model: str) -> HostileHttpRequest:
    """Make a request with a shape of up to 2**62 elements and one number of data."""
    shape = [1, draw.choice(_DECLARED)]
    tensor = {"name": "input_ids", "shape": shape, "datatype": "INT64", "data": [1]}
    return _post("huge shape", model, whole(json.dumps({"inputs": [tensor]}).encode()), "application/json")


def long_option(draw: random.Random, model: str) -> HostileHttpRequest:
    """Make a request with an option whose name or value has up to 10 MB."""
    size = draw.choice((300, 100_000, 1_000_000)) if draw.random() < 0.95 else 10_000_000
    name, before, after = draw.choice((
        ("letters", b'"task":"', b'"'), ("brackets", b'"stop":"', b'"'), ("letters", b'"', b'":1'),
        ("numbers", b'"utility":"', b'"'), ("letters", b'"latency_ms":"', b'"'), ("emoji", b'"task":"', b'"'),
    ))  # fmt: skip
    size -= size % len(PATTERNS[name])
    inputs = json.dumps(_text_inputs("good")).encode()
    body = repeated(name, size, b'{"parameters":{' + before, after + b'},"inputs":' + inputs + b"}")
    return _post("long option", model, body, "application/json")


def slow(draw: random.Random, model: str) -> HostileHttpRequest:
    """Make a request whose body is sent slowly, or stops half way."""
    content = _valid_json(model)
    step = max(1, len(content) // 6)
    parts = tuple(memoryview(content)[at : at + step] for at in range(0, len(content), step))
    leave = draw.random() < 0.5
    return _post("slow", model, RequestBody(parts), "application/json", pause_s=0.01, abandoned=leave)


def large(draw: random.Random, model: str) -> HostileHttpRequest:
    """Make a request above 4 MB with any content type: a pattern, random bytes, or a valid request with a long text."""
    size, kind, pattern = draw.choice(_SIZES), draw.choice(CONTENT_TYPES), draw.choice(list(PATTERNS))
    if pattern == "fields":
        size = min(size, _MAX_FIELDS_BYTES)
    match draw.randrange(10):
        case 0:
            return _post("large noise", model, noise(draw, size), kind)
        case 1:
            before = b'{"inputs":[{"name":"text_input","shape":[1,1],"datatype":"BYTES","data":["'
            return _post("large text", model, repeated("letters", size, before, b'"]}]}'), kind)
        case 2:
            body = RequestBody(tuple(_framed(repeated(pattern, size), draw.choice((16_384, 65_536)))))
            return _chunks("large, chunked", model, body, kind)
        case 3:
            return _post("large, abandoned", model, repeated(pattern, size), kind, abandoned=True)
        case 4:
            return _post("large, elsewhere", model, repeated(pattern, size), kind, path=_path(draw, model))
        case _:
            return _post("large", model, repeated(pattern, size), kind)


#: Kinds of small requests. Those above 4 MB are `large` and `tiny_chunks`.
SMALL_KINDS: tuple[Kind, ...] = (content_type, chunked, headers, deep_json, many, huge_shape, long_option, slow)


def hostile_http(seed: int, small: int, big: int, models: Collection[str]) -> Iterator[HostileHttpRequest]:
    """Yield hostile requests, the same ones for the same seed.

    Args:
        seed: Seed of the requests.
        small: Number of requests of `SMALL_KINDS`.
        big: Number of requests of `large`, in random order with the small ones.
        models: Names of the models to send them to.
    """
    draw, names = random.Random(seed), sorted(models)
    order = [True] * big + [False] * small
    draw.shuffle(order)
    for is_large in order:
        yield (large if is_large else draw.choice(SMALL_KINDS))(draw, draw.choice(names))


def tiny_chunks(models: Collection[str]) -> Iterator[HostileHttpRequest]:
    """Yield a million chunks of one byte for each model: 6 MB, which cost an unprotected tritonserver 2.51 1.3 GB."""
    body = RequestBody((memoryview(_chunk(b"a") * 100_000),) * 10 + (memoryview(b"0\r\n\r\n"),))
    for model, kind in zip(sorted(models), CONTENT_TYPES, strict=False):
        yield _chunks("a million chunks", model, body, kind)


def _text_inputs(text: str) -> list[dict[str, object]]:
    return [{"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": [text]}]


@cache
def _valid_json(model: str) -> bytes:
    if model in ("engine", "images"):  # their inputs are binary
        return to_http(valid(model, 1)).body
    return json.dumps({"inputs": _text_inputs("good")}).encode()


@cache
def _many_headers(count: int) -> bytes:
    return b"".join(b"X-%d: y\r\n" % number for number in range(count))


@cache
def _many(which: int, count: int) -> bytes:
    good = _text_inputs("good")
    match which:
        case 0:
            content: dict[str, object] = {"inputs": [good[0] | {"name": f"x{number}"} for number in range(count)]}
        case 1:
            content = {"inputs": good * count}
        case 2:
            content = {"inputs": good, "outputs": [{"name": f"y{number}"} for number in range(count)]}
        case 3:
            content = {"inputs": good, "parameters": {f"option_{number}": number for number in range(count)}}
        case 4:
            content = {"inputs": [good[0] | {"shape": [1] * count}]}
        case _:
            content = {"inputs": [good[0] | {"shape": [count, 1], "data": ["a"] * count}]}
    return json.dumps(content).encode()


def _path(draw: random.Random, model: str) -> str:
    """Return a path other than `infer`."""
    return draw.choice((
        f"/v2/models/{model}/generate", f"/v2/models/{model}/generate_stream", "/v2/models/writer/generate",
        "/v2/repository/index", f"/v2/repository/models/{model}/load", "/v2/logging", "/v2/health/ready", "/nowhere",
        "/v2/systemsharedmemory/region/x/register", f"/v2/models/{model}",
    ))  # fmt: skip


def _chunk(content: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content), content)


def _framed(body: RequestBody, size: int) -> Iterator[memoryview]:
    """Split a body into HTTP chunks of at most `size` bytes."""
    for part in body.parts:
        for at in range(0, len(part), size):
            piece = part[at : at + size]
            yield memoryview(b"%x\r\n" % len(piece))
            yield piece
            yield memoryview(b"\r\n")
    yield memoryview(b"0\r\n\r\n")


def _post(
    what: str, model: str, body: RequestBody, kind: str | None, added: bytes = b"", *,
    path: str = "", pause_s: float = 0.0, abandoned: bool = False,
) -> HostileHttpRequest:  # fmt: skip
    length = b"" if b"Content-Length" in added and b"Inference" not in added else b"Content-Length: %d\r\n" % body.size
    head = _head(path or f"/v2/models/{model}/infer", kind, added + length)
    return HostileHttpRequest(what, head, body.halves()[0] if abandoned else body, pause_s, waits=not abandoned)


def _chunks(what: str, model: str, body: RequestBody, kind: str | None) -> HostileHttpRequest:
    return HostileHttpRequest(what, _head(f"/v2/models/{model}/infer", kind, b"Transfer-Encoding: chunked\r\n"), body)


def _head(path: str, kind: str | None, added: bytes) -> bytes:
    named = b"" if kind is None else b"Content-Type: " + kind.encode() + b"\r\n"
    return b"POST " + path.encode() + b" HTTP/1.1\r\nHost: fuzzer\r\nConnection: close\r\n" + named + added + b"\r\n"
