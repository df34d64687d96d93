"""Keys, rates, TLS and limits of `tidal gateway`, over real connections."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier
from typing import Any

import httpx
import pytest

from testing.certificates import write_self_signed
from testing.gateways import RunningGateway, running_gateway
from testing.waiting import until
from tests.gateway.conftest import Backend
from tidal_gateway.keys.store import add_key, revoke_key

EMBED = {"model": "embedder", "input": "a b"}
FOREVER = {"model": "talker", "messages": [{"role": "user", "content": "forever"}], "stream": True}
WORKERS = 2
# Date, time and level come before the id of the process.
_PROCESS = re.compile(r"\S+ \S+ \w+ (\d+) ")


@dataclass(frozen=True)
class Guarded:
    """A gateway with keys and TLS, and its files."""

    gateway: RunningGateway
    folder: Path
    trust: ssl.SSLContext

    @property
    def keys(self) -> Path:
        return self.folder / "keys.json"

    def workers_that_log(self, text: str) -> int:
        """Number of workers with a line in the log of the processes that has a text."""
        lines = [line for line in (self.folder / "stderr").read_text().splitlines() if text in line]
        return len({_PROCESS.match(line)[1] for line in lines})  # type: ignore[index]

    def post(self, path: str, document: Any, key: str | None, **options: Any) -> httpx.Response:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        with httpx.Client(verify=self.trust, timeout=30) as client:
            return client.post(f"{self.gateway.url}{path}", json=document, headers=headers, **options)


@pytest.fixture(scope="module")
def guarded(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    for name in ("first", "second"):
        write_self_signed(folder, name, "IP:127.0.0.1")
    for kind in ("key", "pem"):
        shutil.copy2(folder / f"first.{kind}", folder / f"tls.{kind}")
    trust = ssl.create_default_context()
    for name in ("first", "second"):
        trust.load_verify_locations(folder / f"{name}.pem")
    add_key(folder / "keys.json", "first")
    options = ["--keys", str(folder / "keys.json"), "--tls-cert", str(folder / "tls.pem")]
    limits = ["--header-timeout-s", "1", "--body-timeout-s", "1", "--max-body-bytes", "100000"]
    workers = ["--workers", str(WORKERS)]
    tls = ["--tls-key", str(folder / "tls.key")]
    with running_gateway(folder, "--server", backend.address, *options, *tls, *limits, *workers) as gateway:
        found = Guarded(gateway, folder, trust)

        def up() -> bool:
            try:
                return httpx.get(f"{gateway.url}/health", verify=trust).status_code == 200
            except httpx.TransportError:
                return False

        assert until(up), (folder / "stderr").read_text()
        yield found


@pytest.fixture
def new_key(guarded: Guarded) -> Callable[..., str]:
    """Add a key with these limits."""
    return lambda **limits: add_key(guarded.keys, "test", **limits)[0]


@pytest.mark.server
class TestGuarded:
    def test_a_key_is_needed_everywhere_but_for_health(self, guarded: Guarded, new_key: Callable[..., str]) -> None:
        key = new_key()
        assert guarded.post("/v1/embeddings", EMBED, key).status_code == 200
        for path in ("/v1/embeddings", "/v1/rerank", "/embed", "/v2/models/intent/infer", "/v1/chat/completions"):
            for wrong in (None, "nonsense", f"{key[:-2]}xx"):
                response = guarded.post(path, EMBED, wrong)
                assert response.status_code == 401
                assert response.headers["www-authenticate"] == "Bearer"
                assert key not in response.text
        with httpx.Client(verify=guarded.trust, base_url=guarded.gateway.url) as client:
            for path in ("/v1/models", "/openapi.json", "/v2", "/v2/models/intent", "/v2/models/intent/config"):
                assert client.get(path).status_code == 401
            assert client.get("/health").status_code == 200

    def test_revoking_takes_effect(self, guarded: Guarded, new_key: Callable[..., str]) -> None:
        key = new_key()
        assert guarded.post("/v1/embeddings", EMBED, key).status_code == 200
        revoke_key(guarded.keys, key.split("-")[1])
        assert until(lambda: guarded.post("/v1/embeddings", EMBED, key).status_code == 401)

    def test_models_and_tasks_of_a_key(self, guarded: Guarded, new_key: Callable[..., str]) -> None:
        key = new_key(models=("intent/mood", "writer"))
        text = {"input": "hi"}
        for document, status in (
            ({"model": "intent/mood", **text}, 200),
            ({"model": "intent", "task": "mood", **text}, 200),
            ({"model": "intent", **text}, 403),
            ({"model": "intent/news", **text}, 403),
            ({"model": "intent", "task": "news", **text}, 403),
            ({"model": "nope", **text}, 403),
        ):
            assert guarded.post("/v1/classify", document, key).status_code == status
        header = {"Authorization": f"Bearer {key}", "x-tidal-task": "news"}
        with httpx.Client(verify=guarded.trust, base_url=guarded.gateway.url, headers=header) as client:
            assert client.post("/v1/classify", json={"model": "intent", **text}).status_code == 403
            tensor = {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}
            infer = "/v2/models/intent/infer"
            assert client.post(infer, json={"inputs": [tensor]}).status_code == 403
            mood = {"parameters": {"task": "mood"}, "inputs": [tensor]}
            assert client.post(infer, json=mood).status_code == 400  # the header names another task
            assert client.get("/v2/models/embedder/config").status_code == 403
            assert [each["id"] for each in client.get("/v1/models").json()["data"]] == ["writer"]
        assert guarded.post(infer, mood, key).status_code == 200
        generate = {"text_input": "hi", "parameters": {"task": "news"}}
        assert guarded.post("/v2/models/intent/generate", generate, key).status_code == 403

    def test_rates(self, guarded: Guarded, new_key: Callable[..., str]) -> None:
        key = new_key(requests_per_minute=4)
        codes = [guarded.post("/v1/embeddings", EMBED, key) for _ in range(7)]
        assert [each.status_code for each in codes] == [200] * 4 + [429] * 3
        assert 1 <= int(codes[-1].headers["retry-after"]) <= 15
        tokens = new_key(tokens_per_minute=3)
        found = [guarded.post("/v1/embeddings", EMBED, tokens).status_code for _ in range(4)]
        assert found == [200, 200, 429, 429]  # two tokens each: the second answer uses more than is left

    def test_requests_at_a_time(self, guarded: Guarded, new_key: Callable[..., str], backend: Backend) -> None:
        key = new_key(max_concurrency=2)
        header = {"Authorization": f"Bearer {key}"}
        answered = Barrier(6)

        def ask(_: int) -> int:
            """Begin a stream, and close it once all have an answer."""
            with (
                httpx.Client(verify=guarded.trust, base_url=guarded.gateway.url, headers=header, timeout=30) as client,
                client.stream("POST", "/v1/chat/completions", json=FOREVER) as stream,
            ):
                answered.wait(30)
                return stream.status_code

        with ThreadPoolExecutor(6) as pool:
            codes = list(pool.map(ask, range(6)))
        assert sorted(codes) == [200, 200, 429, 429, 429, 429]
        assert until(lambda: guarded.post("/v1/embeddings", EMBED, key).status_code == 200)

    def test_a_request_that_failed_or_lost_its_client_is_no_longer_counted(
        self, guarded: Guarded, new_key: Callable[..., str]
    ) -> None:
        key = new_key(max_concurrency=1)
        for path, document in (
            ("/v1/embeddings", {"model": "embedder", "input": "error INTERNAL broken"}),
            ("/v1/embeddings", {"model": "nope", "input": "a"}),
            ("/v1/embeddings", {}),
        ):
            assert guarded.post(path, document, key).status_code != 429
        header = {"Authorization": f"Bearer {key}"}
        with httpx.Client(verify=guarded.trust, base_url=guarded.gateway.url, headers=header, timeout=30) as client:
            for _ in range(3):
                with client.stream("POST", "/v1/chat/completions", json=FOREVER) as stream:
                    assert stream.status_code == 200
                    lines = stream.iter_lines()  # a generator that nothing holds closes the connection
                    assert next(lines)
                    assert guarded.post("/v1/embeddings", EMBED, key).status_code == 429
                assert until(lambda: guarded.post("/v1/embeddings", EMBED, key).status_code == 200)

    def test_the_log_has_the_id_of_a_key_and_nothing_else_of_it(
        self, guarded: Guarded, new_key: Callable[..., str]
    ) -> None:
        key = new_key()
        guarded.post("/v1/embeddings", EMBED, key, params={"key": "x"})
        identifier = key.split("-")[1]
        assert until(lambda: any(each.get("key") == identifier for each in guarded.gateway.log()))
        secret = key.split("-", 2)[2]
        for name in ("access.jsonl", "stderr"):
            assert secret not in (guarded.folder / name).read_text()

    def test_a_new_certificate_is_used(self, guarded: Guarded) -> None:
        def subject() -> str:
            host, _, port = guarded.gateway.url.removeprefix("https://").partition(":")
            with (
                socket.create_connection((host, int(port)), 10) as raw,
                guarded.trust.wrap_socket(raw, server_hostname=host) as tls,
            ):
                return str(tls.getpeercert())

        assert "first" in subject()
        (guarded.folder / "tls.pem").write_text("nonsense")
        assert until(lambda: guarded.workers_that_log("the previous certificates stay in use") == WORKERS)
        assert "first" in subject()
        for kind in ("key", "pem"):
            shutil.copy2(guarded.folder / f"second.{kind}", guarded.folder / f"tls.{kind}")
        assert until(lambda: all("second" in subject() for _ in range(6)))

    def test_bodies_are_limited(self, guarded: Guarded, new_key: Callable[..., str]) -> None:
        key = new_key()
        large = {"model": "embedder", "input": "x" * 100_001}
        assert guarded.post("/v1/embeddings", large, key).status_code == 413

        def chunks() -> Iterator[bytes]:
            for _ in range(200):
                yield b" " * 1000

        header = {"Authorization": f"Bearer {key}"}
        with httpx.Client(verify=guarded.trust, base_url=guarded.gateway.url, headers=header) as client:
            assert client.post("/v1/embeddings", content=chunks()).status_code == 413
            gzip = {"content-encoding": "gzip"}
            assert client.post("/v1/embeddings", content=b"{}", headers=gzip).status_code == 415

    def test_slow_and_oversized_requests_are_refused(self, guarded: Guarded, new_key: Callable[..., str]) -> None:
        key = new_key()
        host, _, port = guarded.gateway.url.removeprefix("https://").partition(":")

        def answer(content: bytes) -> str:
            with (
                socket.create_connection((host, int(port)), 10) as raw,
                guarded.trust.wrap_socket(raw, server_hostname=host) as tls,
            ):
                tls.settimeout(10)
                tls.sendall(content)
                found = b""
                while b"\r\n\r\n" not in found:
                    part = tls.recv(4096)
                    if not part:
                        break
                    found += part
                return found.decode().partition("\r\n")[0]

        line = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\n"
        assert "408" in answer(line)
        assert "408" in answer(b"")
        assert "431" in answer(line + b"a: " + b"x" * 40_000 + b"\r\n\r\n")
        assert "431" in answer(line + b"a: " + b"x" * 40_000)
        assert "431" in answer(line + b"".join(b"a%d: b\r\n" % number for number in range(8000)) + b"\r\n")
        head = line + b"Authorization: Bearer " + key.encode() + b"\r\nContent-Length: 50\r\n\r\n{"
        assert "408" in answer(head)
        # Refused by its announced size, before a byte of it came.
        assert "413" in answer(head.replace(b" 50\r\n", b" 100000001\r\n"))
        assert "400" in answer(line + b"Content-Length: -5\r\n\r\n")
        assert "400" in answer(b"nonsense\r\n\r\n")

    def test_client_certificates_of_a_file_that_changes(self, backend: Backend, tmp_path: Path) -> None:
        """Only clients whose certificate the present file signs are answered; of a broken file the one before."""
        for name in ("server", "first", "second"):
            write_self_signed(tmp_path, name, "IP:127.0.0.1")
        authority = tmp_path / "ca.pem"
        shutil.copy2(tmp_path / "first.pem", authority)
        tls = ["--tls-cert", str(tmp_path / "server.pem"), "--tls-key", str(tmp_path / "server.key")]
        options = ["--server", backend.address, *tls, "--tls-client-ca", str(authority)]

        def accepted(name: str | None) -> bool:
            trust = ssl.create_default_context(cafile=str(tmp_path / "server.pem"))
            if name is not None:
                trust.load_cert_chain(tmp_path / f"{name}.pem", tmp_path / f"{name}.key")
            try:
                return httpx.get(f"{gateway.url}/health", verify=trust, timeout=10).status_code == 200
            except httpx.TransportError:
                return False

        with running_gateway(tmp_path, *options) as gateway:
            assert until(lambda: accepted("first")), (tmp_path / "stderr").read_text()
            assert not accepted(None)
            assert not accepted("second")
            authority.write_text("nonsense")
            assert until(lambda: "stay in use" in (tmp_path / "stderr").read_text())
            assert accepted("first")
            shutil.copy2(tmp_path / "second.pem", authority)
            assert until(lambda: accepted("second"))
            assert not accepted("first")
            assert not accepted(None)

    def test_browsers_of_named_origins_alone_may_read(self, backend: Backend, tmp_path: Path) -> None:
        options = ["--server", backend.address, "--cors-origin", "https://my.site"]
        preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        with running_gateway(tmp_path, *options) as gateway, httpx.Client(base_url=gateway.url, timeout=30) as client:
            assert until(lambda: _status(client) == 200)
            for origin, named in (("https://my.site", "https://my.site"), ("https://other.site", None)):
                asked = client.options("/v1/embeddings", headers={"Origin": origin, **preflight})
                answer = client.post("/v1/embeddings", json=EMBED, headers={"Origin": origin})
                for each in (asked, answer):
                    assert each.headers.get("access-control-allow-origin") == named
                assert asked.status_code == (200 if named else 400)
                assert answer.status_code == 200
            assert "x-request-id" in answer.headers["access-control-expose-headers"]

    def test_without_the_setting_no_origin_may_read(self, gateway: RunningGateway) -> None:
        answer = gateway.post("/v1/embeddings", EMBED, headers={"Origin": "https://my.site"})
        assert "access-control-allow-origin" not in answer.headers


def _status(client: httpx.Client) -> int:
    try:
        return client.get("/health").status_code
    except httpx.TransportError:
        return 0
