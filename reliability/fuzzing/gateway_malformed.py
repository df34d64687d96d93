"""Malformed requests to a gateway: documents, headers, methods, paths, and bytes that are no HTTP."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

# Documents by path that a gateway answers; `{}` stands for a model.
_DOCUMENTS: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"model": "{}", "input": ["good train", "fine"], "dimensions": 4, "encoding_format": "base64"},
    "/v1/classify": {"model": "{}", "input": [{"text": "a", "pair": "b"}], "latency_ms": 20_000},
    "/v1/completions": {"model": "{}", "prompt": "a", "max_tokens": 2, "n": 1, "stream": True, "stop": ["x"]},
    "/v1/chat/completions": {"model": "{}", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    "/v1/rerank": {"model": "{}", "query": "a", "documents": ["b", {"text": "c"}], "top_n": 1},
    "/v2/rerank": {"model": "{}", "query": "a", "documents": ["b"], "return_documents": True},
    "/embed": {"model": "{}", "inputs": ["a", "b"], "normalize": True},
    "/rerank": {"model": "{}", "query": "a", "texts": ["b"], "return_text": True},
    "/predict": {"model": "{}", "inputs": [["a"], ["b"]]},
    "/v2/models/{}/infer": {
        "id": "x",
        "inputs": [{"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}],
        "outputs": [{"name": "label", "parameters": {"binary_data": True}}],
        "parameters": {"latency_ms": 20_000},
    },
    "/v2/models/{}/generate": {"text_input": "a", "max_tokens": 2, "parameters": {"temperature": 0.5}},
    "/v2/models/{}/generate_stream": {"text_input": "a", "max_tokens": 2, "stream": True},
}
_SURROGATE = "\ud83d"
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"),
    "", " ", "\0", "a" * 70_000, _SURROGATE, "\u202e𝔘", "../../etc/passwd", "encoder/mood", "//", [], {}, [[]], [{}],
    [None], [1, "a"], ["a"] * 3000, [[1, 2], [3]], [[2**40]], [-1], {"a": {"b": []}}, {"": ""}, {"image": "aGk="},
    {"text": 1}, {"text": "a", "pair": None}, [["a", "b", "c"]], {_SURROGATE: _SURROGATE}, "sleep", "1e3", b"",
)  # fmt: skip
_NAMES = ("task", "latency_ms", "utility", "accuracy", "seed", "temperature", "stop", "logprobs", "x", "__class__", "")
_TYPES = ("text/plain", "multipart/form-data", "multipart/form-data; boundary=x", "application/octet-stream", "é", "")


@dataclass(frozen=True, slots=True)
class RawRequest:
    """A request as bytes.

    Attributes:
        what: Kind of the request.
        content: All that is sent.
        waits: Whether the client waits for the answer; otherwise it disconnects.
        complete: Whether an answer is due at once; otherwise the server may wait for more until its timeout.
    """

    what: str
    content: bytes
    waits: bool = True
    complete: bool = True


def gateway_malformed(seed: int, count: int, models: Collection[str], key: str) -> Iterator[RawRequest]:
    """Yield malformed requests, the same ones for the same seed.

    Args:
        seed: Seed of the requests.
        count: Number of requests.
        models: Names of models that are served.
        key: API key, which a tenth of the requests do not send.
    """
    draw, names = random.Random(seed), sorted(models)
    kinds = [*KINDS, *[_document] * 5, _body, _headers]
    for _ in range(count):
        request = draw.choice(kinds)(draw, draw.choice([*names, "nope"]))
        yield request if draw.random() < 0.1 else _with_key(request, key)


def _with_key(request: RawRequest, key: str) -> RawRequest:
    line = b" HTTP/1.1\r\n"
    return replace(request, content=request.content.replace(line, line + f"authorization: Bearer {key}\r\n".encode()))


def _request(path: str, body: bytes, *, method: str = "POST", headers: dict[str, str] | None = None) -> bytes:
    fields = {"host": "x", "content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("utf-8", "surrogatepass") + body


def _chosen(draw: random.Random, model: str) -> tuple[str, dict[str, Any]]:
    path, document = draw.choice(list(_DOCUMENTS.items()))
    copy = json.loads(json.dumps(document))
    if "model" in copy:
        copy["model"] = model
    return path.replace("{}", model), copy


def _encoded(document: Any) -> bytes:
    return json.dumps(document, default=str).encode("utf-8", "surrogatepass")


def _document(draw: random.Random, model: str) -> RawRequest:
    """A document with some values replaced, removed or added, at any depth."""
    path, document = _chosen(draw, model)
    for _ in range(draw.randint(1, 3)):
        inner: Any = document
        while isinstance(inner, dict | list) and inner:
            place = draw.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
            if isinstance(inner[place], dict | list) and inner[place] and draw.random() < 0.5:
                inner = inner[place]
                continue
            change = draw.random()
            if change < 0.7:
                inner[place] = deepcopy(draw.choice(_VALUES))
            elif change < 0.85:
                del inner[place]
            elif isinstance(inner, dict):
                inner[draw.choice(_NAMES)] = deepcopy(draw.choice(_VALUES))
            break
    return RawRequest(f"document {path.replace(model, '')}", _request(path, _encoded(document)))


def _body(draw: random.Random, model: str) -> RawRequest:
    """A body that is not such a document."""
    path, document = _chosen(draw, model)
    whole = _encoded(document)
    depth = draw.choice((50, 1000, 200_000))
    body = draw.choice(
        (
            b"", b"null", b"[]", b"3", b'"x"', b"{", b"\xff\xfe{}", b"\xef\xbb\xbf" + whole, whole[: len(whole) // 2],
            whole + b"x", whole.replace(b":", b"", 1), b"[" * depth, b'{"a":' * depth, b'{"model":' + b"[" * depth,
            whole[:-1] + b', "model": ' + b"[" * depth + b"]" * depth + b"}", draw.randbytes(draw.randint(1, 5000)),
            b'{"model": "\\ud800", "input": "\\udfff"}', whole.replace(b'"', b"'"), whole.decode().encode("utf-16"),
            b'{"' + b"a" * 100_000 + b'": 1}', b"{" + b'"a": 1, ' * 10_000 + b'"b": 2}', whole.replace(b"1", b"1e999"),
        )
    )  # fmt: skip
    return RawRequest("body", _request(path, body))


def _headers(draw: random.Random, model: str) -> RawRequest:
    """Headers that no client sends."""
    path, document = _chosen(draw, model)
    option = draw.choice(("latency-ms", "task", "utility", "accuracy", "seed", "temperature", "latncy", ""))
    value = draw.choice(("nan", "-1", "1e999", "", "é", "x" * 5000, "0x10", "١", "true", "\t", "[" * 100))
    found = draw.choice(
        (
            {f"x-tidal-{option}": value}, {"x-request-id": value}, {"authorization": value},
            {"authorization": "Bearer tidal-é-x"}, {"content-encoding": draw.choice(("gzip", "br", "identity, gzip"))},
            {"content-type": draw.choice(_TYPES)}, {"inference-header-content-length": draw.choice((value, "9" * 30))},
            {"traceparent": value}, {"traceparent": f"00-{'0' * 32}-{'0' * 16}-01"}, {"tracestate": value},
            {"accept-encoding": value}, {"expect": "100-continue"}, {"range": "bytes=0-1"}, {"cookie": value},
            {"host": value}, {"connection": draw.choice(("close", "upgrade", "keep-alive, x"))},
            {"upgrade": "websocket", "connection": "upgrade"}, {"upgrade": "h2c"}, {"x": "y" * 40_000},
            {f"x-{number}": "y" for number in range(3000)}, {"x-forwarded-for": value}, {"origin": "null"},
        )
    )  # fmt: skip
    return RawRequest("headers", _request(path, _encoded(document), headers=found))


def _path(draw: random.Random, model: str) -> RawRequest:
    """Paths and methods that there are not."""
    method = draw.choice(("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT", "FOO"))
    path = draw.choice(
        (
            "/", "//", "/v1", "/v1/", "/v1/embeddings/", "/V1/EMBEDDINGS", "/v1/../v2", "/%2e%2e/%2e%2e", "/%00",
            "/v1/models/%2f", f"/v1/models/{model}/x/y", "/v1/models/" + "a" * 9000, "/v1/models/é", "/%ff",
            "/v1/models/%ed%a0%80",
            f"/v2/models/{model}/versions/0", f"/v2/models/{model}/versions/99999999999999999999/infer",
            f"/v2/models/{model}/versions/x/stats", f"/v2/models/{model}/versions/-1/ready", "/v2/models//infer",
            f"/v2/models/{model}%00/infer", "/v2/repository/index", "/v2/systemsharedmemory/status",
            f"/v2/models/{model}/config",
            "/console/../key.json", "/console/%2e%2e%2fkey.py", "/console/", "/console/style.css?x",
            "/console/api/access", "/console/api/events/",
            "/health?" + "a=b&" * 2000, "/openapi.json", "*", "http://other/v1/models", "/v1/embeddings#x", "/?\0",
        )
    )  # fmt: skip
    return RawRequest("path", _request(path, b"{}" if draw.random() < 0.5 else b"", method=method))


def _multipart(draw: random.Random, model: str) -> RawRequest:
    """Forms that are cut, nested or unusual."""
    name = draw.choice(("image", "file", "model", "é", "a" * 2000, "", "image[]"))
    part = f'--x\r\nContent-Disposition: form-data; name="{name}"; filename="a.png"\r\n\r\n'.encode() + draw.randbytes(
        20
    )
    own = f'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\n{model}\r\n'.encode()
    body = draw.choice(
        (
            b"", own + part, own + part + b"\r\n--x--\r\n", own + b"--x--\r\n", part * 3 + b"\r\n--x--", b"--x\r\n\r\n",
            own + own + b"--x--", b"--y\r\n" + part, own * 80 + b"--x--",
            b"--x\r\nContent-Disposition: \r\n\r\n\r\n--x--",
            own + b'--x\r\nContent-Disposition: form-data; name="image"\r\n\r\ntext\r\n--x--\r\n', b"\0" * 100,
            own + (part + b"\r\n") * 30 + b"--x--",
            b'--x\r\ncontent-disposition: form-data; name*=utf-8\'\'%ff\r\n\r\na\r\n--x--',
        )
    )  # fmt: skip
    kind = draw.choice(
        (
            "multipart/form-data; boundary=x",
            "multipart/form-data; boundary=",
            'multipart/form-data; boundary="',
            "multipart/form-data",
        )
    )
    return RawRequest("form", _request("/v1/classify", body, headers={"content-type": kind}))


def _tensors(draw: random.Random, model: str) -> RawRequest:
    """Tensors whose parts do not fit together."""
    size = draw.choice((0, 1, 5, 100, -1, 2**40))
    shape = draw.choice(([1, 1], [0], [], [2**31], [2**31, 2**31], [-1, 1], [1] * 40, [1.5], "x", None, [100_000, 1]))
    tensor: dict[str, Any] = {
        "name": draw.choice(("text_input", "input_ids", "", "nope", "a" * 5000)),
        "shape": shape,
        "datatype": draw.choice(("BYTES", "INT64", "FP16", "BF16", "BOOL", "INT8", "FP64", "", "bytes", 3)),
    }
    if draw.random() < 0.5:
        tensor["parameters"] = draw.choice(({"binary_data_size": size}, {"binary_data_size": "1"}, [], {"x": 1}))
    else:
        tensor["data"] = draw.choice(
            ([], ["a"], [1], [[1], [2]], [[1], 2], "a", None, [1e400], [2**70], [None], [[["a"]]])
        )
    document = {"inputs": [tensor] * draw.choice((0, 1, 1, 1, 2, 3000)), "parameters": {draw.choice(_NAMES): 1}}
    head = _encoded(document)
    binary = draw.randbytes(draw.choice((0, 1, 5, 100)))
    length = draw.choice((len(head), 0, len(head) // 2, len(head) + 50, 10**12))
    headers = {"inference-header-content-length": str(length)} if draw.random() < 0.7 else {}
    return RawRequest("tensors", _request(f"/v2/models/{model}/infer", head + binary, headers=headers))


def _framing(draw: random.Random, model: str) -> RawRequest:
    """HTTP whose length is wrong or unusual."""
    path, document = _chosen(draw, model)
    body = _encoded(document)
    line = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n".encode()
    chunked = line + b"transfer-encoding: chunked\r\n\r\n"
    cases: list[RawRequest] = [
        RawRequest("chunks", chunked + b"".join(b"1\r\n%c\r\n" % each for each in body) + b"0\r\n\r\n"),
        RawRequest("wrong chunks", chunked + b"zz\r\n" + body),
        RawRequest("endless chunk", chunked + b"f" * 40 + b"\r\n", waits=False),
        RawRequest("two lengths", line + b"content-length: 2\r\ncontent-length: 5\r\n\r\n{}"),
        RawRequest("length and chunks", line + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
        RawRequest("negative length", line + b"content-length: -1\r\n\r\n"),
        RawRequest("length of letters", line + b"content-length: ten\r\n\r\n{}"),
        RawRequest("huge length", line + b"content-length: 99999999999\r\n\r\n{"),
        RawRequest("left half way", line + b"content-length: 5000\r\n\r\n" + body[:20], waits=False),
        RawRequest("left after the request", _request(path, body), waits=False),
        RawRequest("left in the headers", line[: draw.randint(1, len(line))], waits=False),
        RawRequest("pipelined", _request(path, body) * draw.randint(2, 20)),
        RawRequest("a body that GET has not", b"GET /health HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nabcde"),
        RawRequest("no host", b"GET /v1/models HTTP/1.1\r\n\r\n"),
        RawRequest("HTTP/1.0", b"GET /v1/models HTTP/1.0\r\n\r\n"),
    ]
    return draw.choice(cases)


def _no_http(draw: random.Random, _model: str) -> RawRequest:
    """Bytes that are no HTTP."""
    noise = draw.randbytes(draw.randint(1, 3000))
    content = draw.choice(
        (
            noise, b"\r\n" * 50, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01" + noise,
            b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/models\r\n\r\n",
            b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
            b"GET / HTTP/1.1\r\n: x\r\n\r\n", b"GET / HTTP/1.1\r\na\x00b: x\r\n\r\n", b"\x00" * 1000, b"SSH-2.0-x\r\n",
            b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nhost: \xff\xfe\r\n\r\n",
        )
    )  # fmt: skip
    return RawRequest("no HTTP", content, complete=False)


#: Every kind of malformed request.
KINDS: tuple[Callable[[random.Random, str], RawRequest], ...] = (
    _document, _body, _headers, _path, _multipart, _tensors, _framing, _no_http,
)  # fmt: skip
