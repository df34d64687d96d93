"""Requests that crash an unprotected tritonserver 2.51 are refused or answered, and the server keeps serving."""

from __future__ import annotations

import gzip
import json
import os
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
import tritonclient.http
from tritonclient.grpc import service_pb2

from testing.servers import RunningServer, running_server
from testing.serving import Served, publish
from tests.serve.hostile import FORM, INFER, JSON, VALID, chunks, exchange, filled, read_answer, status
from tidal.http_guard.build import build
from tidal.server import protection
from tidal.server.protection import MAX_INPUT_SIZE, MAX_MESSAGE_SIZE

pytestmark = pytest.mark.server

MB = 10**6
CONTENT_TYPES = (JSON, "application/octet-stream", "multipart/form-data; boundary=x", "text/plain", "image/jpeg", "*/*")


@pytest.fixture(scope="session", autouse=True)
def _guard() -> None:
    build()


@pytest.fixture(autouse=True)
def _server_stays(served: Served) -> Iterator[None]:
    """Check after each test that the same server still runs and answers over HTTP and gRPC."""
    before = served.state["server_pid"]
    yield
    assert served.state["server_pid"] == before
    assert psutil.Process(before).status() != psutil.STATUS_ZOMBIE
    assert served.infer() == 0.0
    assert served.infer_grpc() == 0.0


def sent(served: Served, size: int, content_type: str | None, path: str = INFER) -> str:
    headers = [("Content-Length", size)] if content_type is None else [
        ("Content-Type", content_type),
        ("Content-Length", size),
    ]  # fmt: skip
    return exchange(served.report["http"], filled(size), headers, path)


@pytest.mark.parametrize("size", [5 * MB, 120 * MB])
@pytest.mark.parametrize("content_type", [None, FORM, JSON])
def test_a_large_body_is_answered(served: Served, size: int, content_type: str | None) -> None:
    answer = sent(served, size, content_type)
    refused = size > MAX_INPUT_SIZE or content_type == FORM
    assert status(answer) == (413 if refused else 500), answer
    if refused:
        assert f"has {size} bytes" in json.loads(answer.partition("\r\n\r\n")[2])["error"]


@pytest.mark.parametrize("content_type", [*CONTENT_TYPES, FORM.upper(), f"{FORM}; charset=utf-8", f"{FORM}x"])
def test_large_bodies_of_every_content_type(served: Served, content_type: str) -> None:
    form = "urlencoded" in content_type.lower()
    assert status(sent(served, 30 * MB, content_type)) == (413 if form else 500)
    if form:
        assert status(sent(served, 4 << 20, content_type)) == 500  # parsed, but not JSON


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/echo/generate",
        "/v2/models/echo/generate_stream",
        "/v2/repository/index",
        "/v2/repository/models/echo/load",
        "/v2/repository/models/echo/unload",
        "/v2/systemsharedmemory/region/x/register",
        "/v2/logging",
        "/v2/trace/setting",
        "/v2/health/ready",
        "/no/such/path",
        "/",
    ],
)
def test_large_bodies_at_every_endpoint(served: Served, path: str) -> None:
    assert status(sent(served, 20 * MB, FORM, path)) == 413
    headers = [("Transfer-Encoding", "chunked")]
    assert status(exchange(served.report["http"], chunks(100_000), headers, path)) == 413


def test_large_bodies_at_the_metrics_port(served: Served) -> None:
    headers = [("Content-Type", FORM), ("Content-Length", 20 * MB)]
    assert status(exchange(served.report["metrics"], filled(20 * MB), headers, "/metrics", "GET")) == 413
    assert status(exchange(served.report["metrics"], (), (), "/metrics", "GET")) == 200


def test_a_large_body_from_curl(served: Served, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    with (tmp_path / "body").open("wb") as file:
        file.writelines(filled(120 * MB))
    url = f"http://{served.report['http']}{INFER}"
    for more in ((), ("--header", "Transfer-Encoding: chunked"), ("--header", f"Content-Type: {JSON}")):
        command = ["curl", "--silent", "--data-binary", f"@{tmp_path / 'body'}", *more, url]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
        assert "bytes; this" in json.loads(answer)["error"]


@pytest.mark.parametrize("count", [1_000_000])
def test_chunks_of_one_byte(served: Served, count: int) -> None:
    answer = exchange(served.report["http"], chunks(count), [("Transfer-Encoding", "chunked")])
    assert status(answer) == 413
    assert "more than 65536 pieces" in answer


def test_large_chunks_are_counted(served: Served) -> None:
    headers = [("Transfer-Encoding", "chunked"), ("Content-Type", JSON)]
    assert status(exchange(served.report["http"], chunks(30, b"a" * MB), headers)) == 500
    assert status(exchange(served.report["http"], chunks(200, b"a" * MB), headers)) == 413


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
@pytest.mark.parametrize("path", [INFER, "/v2/models/echo/generate"])
def test_deeply_nested_json(served: Served, opening: bytes, path: str) -> None:
    for levels, code in ((900, (400, 500)), (10_000, (400,)), (2_000_000, (400,))):
        body = b'{"inputs":' + opening * (levels // (opening.count(b"[") + opening.count(b"{")))
        answer = exchange(served.report["http"], [body], [("Content-Length", len(body))], path)
        assert status(answer) in code
        assert ("nested deeper than" in answer) == (levels > 1000)


def test_brackets_in_texts_are_not_nesting(served: Served) -> None:
    body = json.dumps({"inputs": [], "id": '[{"\\' * 20_000}).encode()
    assert "nested" not in exchange(served.report["http"], [body], [("Content-Length", len(body))])


def shaped(*shapes: str, key: str = "shape", datatype: str = "INT64") -> bytes:
    """An inference request whose tensors have one element each, whatever their shapes are."""
    tensors = [f'{{"name":"SECONDS","{key}":{shape},"datatype":"{datatype}","data":[0]}}' for shape in shapes]
    return f'{{"inputs":[{",".join(tensors)}]}}'.encode()


@pytest.mark.parametrize(
    "body",
    [
        shaped("[1,8589934592]"),
        shaped("[ 1 ,\t8589934592\n]", datatype="FP32"),
        shaped("[4294967296,4294967296,4294967296]"),
        shaped("[99999999999999999999999]"),
        shaped("[1]", "[3000,3000]", "[3000,3000]"),
        shaped("[8589934592]", key="sh\\u0061pe"),
        shaped("[1]") + b" ",
    ],
)
@pytest.mark.parametrize("split", [False, True])
def test_a_shape_larger_than_the_body_is_refused(served: Served, body: bytes, split: bool) -> None:
    """The server allocates the size of the shape before it reads data: 64 GiB ended it (std::bad_alloc)."""
    parts = [body[n : n + 1] for n in range(len(body))] if split else [body]
    answer = exchange(served.report["http"], parts, [("Content-Type", JSON), ("Content-Length", len(body))])
    assert status(answer) in (200, 400, 500)
    large = body != shaped("[1]") + b" "
    assert ("the shapes of the tensors have more than 16777216 elements" in answer) == large, answer


def test_numbers_outside_of_shapes_are_not_limited(served: Served) -> None:
    for body in (
        VALID.replace(
            b'"inputs"', b'"parameters":{"size":[99999999,99999999],"a":"\\"shape\\":[8589934592]"},"inputs"'
        ),
        VALID.replace(b'"inputs"', b'"shapes":[99999999,99999999],"inputs"'),
        VALID.replace(b'"inputs"', b'"parameters":{"text":"shape"},"list":[99999999,99999999],"inputs"'),
    ):
        headers = [("Content-Type", JSON), ("Content-Length", len(body))]
        assert "the shapes" not in exchange(served.report["http"], [body], headers)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "x-unknown"])
def test_compressed_bodies_are_refused(served: Served, encoding: str) -> None:
    body = gzip.compress(b" " * 100 * MB)
    assert len(body) < MB
    answer = exchange(served.report["http"], [body], [("Content-Encoding", encoding), ("Content-Length", len(body))])
    assert status(answer) == 415


def test_a_flood_of_headers(served: Served) -> None:
    assert status(exchange(served.report["http"], (), [(f"h{n}", n) for n in range(1000)], INFER, "GET")) == 405
    assert status(exchange(served.report["http"], (), [(f"h{n}", n) for n in range(200_000)], INFER, "GET")) == 431
    # The server itself closes the connection at a header of 8 KiB.
    assert status(exchange(served.report["http"], (), [("h", "v" * 100_000)], INFER, "GET")) in (0, 431)


@pytest.mark.parametrize(
    "head",
    [
        "POST {path} HTTP/1.1\nContent-Length: 30000000\n\n",
        "POST {path} HTTP/1.1\r\nContent-Length : 30000000\r\n\r\n",
        "POST {path} HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 30000000\r\n\r\n",
        "POST {path} HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST {path} HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "POST {path} HTTP/1.1\r\nTransfer-Encoding: chunked \r\n\r\n",
        "POST {path} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        "POST {path} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5;name=value\r\n",
        "POST {path} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc",
        "POST {path} HTTP/1.1\r\nContent-Type: x\r\n\tapplication/x-www-form-urlencoded\r\n\r\n",
        "POST {path} HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "POST {path} HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        "CONNECT {path} HTTP/1.1\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 not HTTP at all\r\n\r\n",
    ],
)
@pytest.mark.parametrize("split", [False, True])
def test_requests_whose_end_is_ambiguous_are_refused(served: Served, head: str, split: bool) -> None:
    host, port = served.report["http"].split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        text = head.format(path=INFER).encode("latin-1")
        for part in [text[n : n + 1] for n in range(len(text))] if split else [text]:
            try:
                connection.sendall(part)
            except OSError:
                break
        # Byte by byte, the server may close the connection after the first part of the request.
        assert status(read_answer(connection)) in ((0, 400) if split else (400,))


def test_valid_requests_in_every_framing(served: Served) -> None:
    host, port = served.report["http"].split(":")
    plain = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (INFER.encode(), len(VALID), VALID)
    chunked = b"POST %s HTTP/1.1\r\nHost: x\r\ntransfer-encoding: chunked\r\n\r\n" % INFER.encode()
    chunked += b"".join(b"%X\r\n%s\r\n" % (len(VALID[n : n + 9]), VALID[n : n + 9]) for n in range(0, len(VALID), 9))
    chunked += b"0\r\n\r\n"
    expecting = plain.replace(b"Host: x", b"Expect: 100-continue")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for request in (plain, chunked, plain):
            connection.sendall(request)
            assert '"data":[0.0]' in read_answer(connection)
        head, end, body = chunked.partition(b"\r\n\r\n")
        for part in (head + end, *(bytes([byte]) for byte in body)):  # byte by byte, like a slow client
            connection.sendall(part)
        assert '"data":[0.0]' in read_answer(connection)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(expecting.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 100")
        connection.sendall(VALID)
        assert '"data":[0.0]' in read_answer(connection)


def test_binary_tensors_are_not_parsed_as_json(served: Served) -> None:
    """Bytes that look like brackets do not count as nesting."""
    tensor = tritonclient.http.InferInput("SECONDS", [4_000_000], "FP32")
    tensor.set_data_from_numpy(np.frombuffer(b"[" * 16_000_000, np.float32))
    with pytest.raises(tritonclient.http.InferenceServerException, match="unexpected shape"):
        served.http().infer("echo", [tensor])


def test_a_slow_body_delays_no_other_client(served: Served) -> None:
    host, port = served.report["http"].split(":")
    with socket.create_connection((host, int(port)), timeout=30) as slow:
        slow.sendall(b"POST %s HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (INFER.encode(), len(VALID)))
        for byte in VALID[:-1]:
            slow.sendall(bytes([byte]))
            time.sleep(0.01)
        assert served.infer() == 0.0
        slow.sendall(VALID[-1:])
        assert '"data":[0.0]' in read_answer(slow)


def test_stubs_inherit_neither_guard_nor_stack(served: Served) -> None:
    library = protection.guard()
    assert library is not None
    assert library.name in Path(f"/proc/{served.state['server_pid']}/maps").read_text()
    for stub in served.stubs("echo"):
        assert library.name not in Path(f"/proc/{stub.pid}/maps").read_text()
        assert not {"LD_PRELOAD", "TIDAL_HTTP_MAX_BODY"} & {*stub.environ()} - {*os.environ}
        assert stub.rlimit(resource.RLIMIT_STACK) == resource.getrlimit(resource.RLIMIT_STACK)


def test_stubs_do_not_inherit_connections(served: Served) -> None:
    host, _, port = served.report["http"].rpartition(":")
    before = served.stubs("spare")
    with socket.create_connection((host, int(port)), 30) as kept:
        kept.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 200 " in kept.recv(1024)
        assert served.tidal("models", "reload", "spare").returncode == 0
        (stub,) = {*served.stubs("spare")} - {*before}
        assert stub.net_connections() == []


def _message(data: bytes) -> bytes:
    request = service_pb2.ModelInferRequest(model_name="echo")
    tensor = request.inputs.add()
    tensor.name, tensor.datatype = "SECONDS", "FP32"
    tensor.shape.append(1)
    request.raw_input_contents.append(data)
    return bytes(request.SerializeToString())


@pytest.mark.parametrize(
    ("data", "compression", "code"),
    [
        (
            bytes(100 * MB),
            grpc.Compression.NoCompression,
            grpc.StatusCode.INVALID_ARGUMENT,
        ),  # read completely, then refused for its size
        (bytes(100 * MB), grpc.Compression.Gzip, grpc.StatusCode.INVALID_ARGUMENT),  # 0.1 MB on the wire
        (bytes(MAX_MESSAGE_SIZE), grpc.Compression.NoCompression, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (os.urandom(MB) + bytes(MB), grpc.Compression.Gzip, grpc.StatusCode.RESOURCE_EXHAUSTED),  # could expand to 1 GB
    ],
    ids=["100 MB", "100 MB compressed", "256 MiB", "compressed to 1 MB"],
)
def test_large_grpc_messages(served: Served, data: bytes, compression: grpc.Compression, code: grpc.StatusCode) -> None:
    with grpc.insecure_channel(served.report["grpc"], options=[("grpc.max_send_message_length", -1)]) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as raised:
            call(_message(data), timeout=120, compression=compression)
        assert raised.value.code() is code
        # A new connection is made where that one was closed.
        with pytest.raises(grpc.RpcError) as raised:
            call(_message(bytes(8)), timeout=30, wait_for_ready=True)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_declared_grpc_message_is_refused_before_it_is_sent(served: Served) -> None:
    """Its five bytes of length are sent in separate frames; otherwise the server would wait for 2 GB."""

    def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload

    names = {":method": "POST", ":scheme": "http", ":path": "/inference.GRPCInferenceService/ModelInfer"}
    names |= {":authority": "test", "content-type": "application/grpc", "te": "trailers"}
    fields = b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in names.items()
    )
    host, port = served.report["grpc"].split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, fields))
        for byte in b"\0" + (MAX_MESSAGE_SIZE + 1).to_bytes(4):
            connection.sendall(frame(0, 8, 1, bytes([2, byte, 0, 0])))  # padded by two bytes
            time.sleep(0.02)
        received = b""
        while b"grpc-max-message-size" not in received and (part := connection.recv(1 << 16)):
            received += part
    assert frame(3, 0, 1, b"\0\0\0\x0b") in received
    assert b"a message is larger than" in received


def test_without_the_guard_the_stack_holds_large_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the guard cannot be built, a larger stack limit protects the server."""
    monkeypatch.setattr(protection, "guard", lambda: None)
    publish(tmp_path / "models", "echo")
    with running_server(tmp_path / "models") as server:
        assert _form(server, 20 * MB) == _form(server, 100 * MB) == 500
        assert server.process.exit_status() is None
        limits = psutil.Process(server.pid).rlimit(resource.RLIMIT_STACK)
        assert limits[0] == 256 << 20


def _form(server: RunningServer, size: int) -> int:
    return status(exchange(server.http, filled(size), [("Content-Type", FORM), ("Content-Length", size)]))
