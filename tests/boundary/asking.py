"""Asking the `probe` backend over HTTP or gRPC, and writing models of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.servers import RunningServer

BACKENDS = {"probe": Path(__file__).with_name("backends") / "probe"}
PROTOCOLS = ("http", "grpc")
_HTTP_CODES = {"400": "INVALID_ARG", "404": "NOT_FOUND", "500": "INTERNAL", "501": "UNSUPPORTED", "503": "UNAVAILABLE"}
_GRPC_CODES = {"INVALID_ARGUMENT": "INVALID_ARG", "UNIMPLEMENTED": "UNSUPPORTED"}


class Refused(Exception):
    """The server answered with an error; `code` is the same over both protocols."""

    def __init__(self, error: InferenceServerException) -> None:
        super().__init__(error.message())
        status = str(error.status()).removeprefix("StatusCode.")
        self.code = _HTTP_CODES.get(status) or _GRPC_CODES.get(status, status)


class NoAnswer(Exception):
    """Nothing came within the client's timeout, or the connection broke."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Sends requests to one server; safe to use from several threads."""

    server: RunningServer
    protocol: str
    local: threading.local

    def __call__(
        self,
        action: str | Sequence[str],
        *,
        model: str = "probe",
        outputs: Sequence[str] = (),
        timeout_s: float = 20.0,
        **options: Any,
    ) -> dict[str, npt.NDArray[Any]]:
        """Send a row for each action and return the outputs by name.

        Raises:
            Refused: the server answered with an error.
            NoAnswer: it did not answer.
        """
        rows = [action] if isinstance(action, str) else list(action)
        texts = np.array([[row.encode()] for row in rows], object).reshape(len(rows), 1)
        return self.raw(model, {"action": texts}, outputs, timeout_s, options)

    def raw(
        self,
        model: str,
        inputs: dict[str, npt.NDArray[Any]],
        outputs: Sequence[str] = (),
        timeout_s: float = 20.0,
        options: dict[str, Any] | None = None,
    ) -> dict[str, npt.NDArray[Any]]:
        module: Any = tritonclient.http if self.protocol == "http" else tritonclient.grpc
        tensors = []
        for name, array in inputs.items():
            kind = {"O": "BYTES", "i": f"INT{array.itemsize * 8}", "f": "FP32"}[array.dtype.kind]
            tensor = module.InferInput(name, list(array.shape), kind)
            tensor.set_data_from_numpy(array)
            tensors.append(tensor)
        wanted = [module.InferRequestedOutput(name) for name in outputs] or None
        more: dict[str, Any] = {"client_timeout": timeout_s} if self.protocol == "grpc" else {}
        try:
            result = self._client(timeout_s).infer(model, tensors, outputs=wanted, parameters=options, **more)
        except InferenceServerException as error:
            if str(error.status()) in ("StatusCode.DEADLINE_EXCEEDED", "499") or error.status() is None:
                raise NoAnswer(str(error)) from None
            raise Refused(error) from None
        except OSError as error:
            raise NoAnswer(str(error)) from None
        response = result.get_response()
        given = response["outputs"] if self.protocol == "http" else response.outputs
        names = [output["name"] if self.protocol == "http" else output.name for output in given]
        return {name: result.as_numpy(name) for name in names}

    def _client(self, timeout_s: float) -> Any:
        key = self.protocol if self.protocol == "grpc" else f"http {timeout_s}"
        clients = self.local.__dict__
        if key not in clients:
            clients[key] = (
                tritonclient.grpc.InferenceServerClient(self.server.grpc)
                if self.protocol == "grpc"
                else tritonclient.http.InferenceServerClient(
                    self.server.http, network_timeout=timeout_s, connection_timeout=timeout_s
                )
            )
        return clients[key]


def asker(server: RunningServer, protocol: str) -> Asker:
    return Asker(server, protocol, threading.local())


def outcome(ask: Callable[..., dict[str, npt.NDArray[Any]]], *args: Any, **kwargs: Any) -> str:
    """How a request ended: OK, an error's code, or NO_ANSWER."""
    try:
        ask(*args, **kwargs)
    except Refused as error:
        return error.code
    except NoAnswer:
        return "NO_ANSWER"
    return "OK"


def together(count: int, ask: Callable[[int], Any]) -> list[Any]:
    """Call `ask(0)` … `ask(count - 1)` at the same time, each in a thread; results or exceptions in order."""
    with ThreadPoolExecutor(count) as pool:
        futures: list[Future[Any]] = [pool.submit(ask, index) for index in range(count)]
        return [future.exception() or future.result() for future in futures]


def in_background(ask: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
    """Ask in a thread of its own; a request that is never answered ends with the client's timeout."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(ask(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether the condition comes true within some seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def write_model(
    repository: Path, name: str = "probe", *, version: int = 1, config: str = "", **parameters: Any
) -> None:
    """Write a model of the `probe` backend with a config of one line, plus `config` and `parameters`."""
    folder = repository / name
    (folder / str(version)).mkdir(parents=True, exist_ok=True)
    (folder / str(version) / ".keep").touch()
    lines = ['backend: "probe"', config]
    lines += [f'parameters {{ key: "{k}" value: {{ string_value: "{v}" }} }}' for k, v in parameters.items()]
    (folder / "config.pbtxt").write_text("\n".join(lines) + "\n")
