"""Clients of the `probe` backend over HTTP or gRPC, and models of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from testing.servers import RunningServer
from testing.waiting import until
from tidal_client.codec import InferRequest
from tidal_client.errors import RequestError
from tidal_client.transports import Transport
from tidal_client.transports.addresses import parse_url

BACKENDS = {"probe": Path(__file__).with_name("backends") / "probe"}
PROTOCOLS = ("http", "grpc")


@dataclass(frozen=True, slots=True)
class ProbeClient:
    """Sends requests to one server over one protocol, from any thread."""

    protocol: str
    transport: Transport

    def __call__(
        self,
        action: str | Sequence[str],
        *,
        model: str = "probe",
        outputs: Sequence[str] | None = None,
        timeout_s: float = 20.0,
        **options: Any,
    ) -> dict[str, npt.NDArray[Any]]:
        """Send one row per action and return the outputs by name.

        Raises:
            RequestError: The server refused the request, or did not answer.
        """
        rows = [action] if isinstance(action, str) else list(action)
        texts = np.array([row.encode() for row in rows], object).reshape(len(rows), 1)
        return self.raw(model, {"action": texts}, outputs=outputs, timeout_s=timeout_s, **options)

    def raw(
        self,
        model: str,
        inputs: dict[str, npt.NDArray[Any]],
        *,
        outputs: Sequence[str] | None = None,
        timeout_s: float = 20.0,
        **options: Any,
    ) -> dict[str, npt.NDArray[Any]]:
        """Send arrays, with unchecked options."""
        return self.transport.infer(InferRequest(model, inputs, outputs, options, ""), timeout_s)


def connect(server: RunningServer, protocol: str) -> ProbeClient:
    return ProbeClient(protocol, parse_url(f"{protocol}://{getattr(server, protocol)}").connect())


@contextmanager
def connected(server: RunningServer, *protocols: str) -> Iterator[list[ProbeClient]]:
    """Connect a client per protocol. They are closed at the end: tritonserver waits for idle HTTP connections."""
    with ExitStack() as stack:
        clients = []
        for protocol in protocols:
            clients.append(connect(server, protocol))
            stack.callback(clients[-1].transport.close)
        yield clients


def outcome(ask: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Return OK or the error code of a request; DEADLINE_EXCEEDED and CONNECTION_FAILED mean no response."""
    try:
        ask(*args, **kwargs)
    except RequestError as error:
        return error.code
    return "OK"


def holds(ask: ProbeClient, count: int, model: str = "probe") -> bool:
    """Wait until a model has `count` held or waiting requests; return whether it has."""
    return until(lambda: int(ask("open", model=model)["echo"].item()) == count)


def together(count: int, ask: Callable[[int], Any]) -> list[Any]:
    """Call `ask(0)` … `ask(count - 1)` concurrently in threads; return results or exceptions in order."""
    with ThreadPoolExecutor(count) as pool:
        futures: list[Future[Any]] = [pool.submit(ask, index) for index in range(count)]
        return [future.exception() or future.result() for future in futures]


def in_background(ask: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
    """Send a request in a new thread; an unanswered one ends with the client's timeout."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(ask(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


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
