"""Servers and a gateway before them, for the scenarios that are about the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from benchmarks.gateway.http_load import Request
from benchmarks.gateway.survival import upstream
from reliability.models import CHAT, TASK, text
from reliability.server_under_test import ServerUnderTest
from testing.cascades import SMALL
from testing.gateways import RunningGateway, running_gateway
from testing.serving import Served, serving
from testing.waiting import until

_READY_S = 60.0
# By default `tidal serve` ends on purpose when tritonserver has ended more than five times in a row.
_SERVE: Final = ("--exit-timeout", "3", "--server-restarts", "100")


@contextmanager
def before(target: ServerUnderTest, *options: str) -> Iterator[RunningGateway]:
    """Run a gateway before the server under test.

    Args:
        target: Server under test.
        options: Further options of `tidal gateway`.
    """
    with _gateway(target.folder, [target.served], options) as gateway:
        yield gateway


@contextmanager
def several(target: ServerUnderTest, count: int, *options: str) -> Iterator[tuple[RunningGateway, list[Served]]]:
    """Run servers of their own over the repository, and a gateway before them; the server under test is stopped.

    Args:
        target: Server under test.
        count: Number of servers.
        options: Further options of `tidal gateway`.
    """
    target.stop()
    with ExitStack() as stack:
        servers = []
        for _ in range(count):
            runtime = Path(mkdtemp(prefix="run-", dir=target.folder))
            servers.append(stack.enter_context(serving(target.repository.folder, runtime, *_SERVE)))
        yield stack.enter_context(_gateway(target.folder, servers, options)), servers


@contextmanager
def _gateway(folder: Path, servers: list[Served], options: tuple[str, ...]) -> Iterator[RunningGateway]:
    addresses = [word for served in servers for word in ("--server", upstream(served))]
    with running_gateway(Path(mkdtemp(prefix="gateway-", dir=folder)), *addresses, *options) as gateway:
        if not until(gateway.ready, _READY_S):
            raise RuntimeError(f"the gateway does not answer: {(gateway.folder / 'stderr').read_text()[-2000:]}")
        yield gateway


def classifications(gateway: RunningGateway) -> list[Request]:
    """Return unary requests to a classifier and to a task of a shared encoder."""
    words = text(7, 6)
    return [
        Request(gateway.address, "/v1/classify", {"model": SMALL, "input": words}),
        Request(gateway.address, "/v1/classify", {"model": f"tasks/{TASK}", "input": words}),
    ]


def generations(gateway: RunningGateway, max_tokens: int) -> list[Request]:
    """Return a streamed and a whole generation by the decoder with chats."""
    body = {"model": CHAT, "prompt": text(3, 4), "max_tokens": max_tokens, "ignore_eos": True}
    return [
        Request(gateway.address, "/v1/completions", {**body, "stream": True}),
        Request(gateway.address, "/v1/completions", body),
    ]
