"""A server that is open to others: open admin endpoints, TLS for gRPC, a custom limit for HTTP bodies."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.grpc

from testing.certificates import write_self_signed
from testing.serving import FREE_PORTS, Served, environment_in, publish, serving, tidal_in_process
from testing.waiting import until
from tests.serve.hostile import JSON, chunks, exchange, filled, status

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate of `localhost`, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    return write_self_signed(tmp_path_factory.mktemp("tls"), "localhost", "DNS:localhost")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encrypted") / "models"
    publish(folder, "echo")
    publish(folder, "spare")
    return folder


@pytest.fixture(scope="module")
def encrypted(
    repository: Path, certificate: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    own = ("--open-admin", "--host", "0.0.0.0", "--http-max-input-size", str(1 << 20))
    cert, key = certificate
    tls = ("--grpc-use-ssl=true", f"--grpc-server-cert={cert}", "--grpc-server-key", str(key))
    with serving(repository, tmp_path_factory.mktemp("runtime"), *own, "--", *tls) as server:
        yield server


def test_warns_of_open_admin_endpoints(encrypted: Served) -> None:
    printed = (encrypted.runtime / "stderr").read_text()
    assert "WARNING --open-admin with --host 0.0.0.0: everybody who can connect to port" in printed
    assert "can load and unload models" in printed
    assert encrypted.http().get_model_repository_index()


def test_grpc_is_encrypted(encrypted: Served, certificate: tuple[Path, Path]) -> None:
    address = encrypted.report["grpc"].replace("127.0.0.1", "localhost")
    with tritonclient.grpc.InferenceServerClient(address, ssl=True, root_certificates=str(certificate[0])) as client:
        assert client.is_model_ready("echo")
    plain = tritonclient.grpc.InferenceServerClient(encrypted.report["grpc"])
    with plain, pytest.raises(tritonclient.grpc.InferenceServerException):
        plain.is_server_live(client_timeout=5)
    assert encrypted.state["grpc_tls"] is True


def test_reload_load_and_unload_work(encrypted: Served, repository: Path) -> None:
    publish(repository, "spare", version=2)
    answer = encrypted.tidal("models", "reload", "spare")
    assert (answer.returncode, answer.stdout) == (0, "spare: version 2 serves now, version 1 before\n"), answer.stderr
    assert encrypted.tidal("models", "unload", "spare").returncode == 0
    assert encrypted.tidal("models", "load", "spare").returncode == 0
    assert encrypted.tidal("models", "status").returncode == 0


def test_a_killed_stub_is_replaced(encrypted: Served) -> None:
    before = encrypted.state["restarts"].get("echo", 0)
    encrypted.stubs("echo")[0].kill()
    assert until(lambda: encrypted.state["restarts"].get("echo", 0) == before + 1)
    assert encrypted.infer() == 0.0


def test_the_limit_for_bodies_can_be_set(encrypted: Served) -> None:
    for size, code in (((1 << 20), 500), ((1 << 20) + 1, 413)):
        headers = [("Content-Type", JSON), ("Content-Length", size)]
        assert status(exchange(encrypted.report["http"], filled(size), headers)) == code
    assert (
        status(exchange(encrypted.report["http"], chunks(3000, b"x" * 1000), [("Transfer-Encoding", "chunked")])) == 413
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--http-port=9000",), "--http-port cannot be passed to tritonserver: use --http-port of tidal serve"),
        (("--grpc-address", "0.0.0.0"), "--grpc-address cannot be passed to tritonserver: use --host of tidal serve"),
        (
            ("--allow-http=false",),
            "--allow-http=false cannot be passed to tritonserver: tidal serve needs that endpoint",
        ),
        (("--model-control-mode=poll",), "--model-control-mode cannot be passed to tritonserver: tidal serve loads"),
        (("--http-use-ssl=true",), "--http-use-ssl is not an option of tritonserver, whose HTTP endpoint has no TLS"),
    ],
)
def test_options_that_tidal_serve_sets_itself_are_refused(
    repository: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    answer = tidal_in_process(
        "serve", str(repository), *FREE_PORTS, "--", *options, environment=environment_in(tmp_path)
    )
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"error: {message}")
    assert answer.stdout == ""
