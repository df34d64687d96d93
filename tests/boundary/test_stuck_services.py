"""Services that hang: clients, restarts and the end of the server do not wait for them."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from testing.requests import make_context
from testing.servers import running_server
from testing.waiting import until
from tests.boundary.clients import (
    BACKENDS,
    PROTOCOLS,
    ProbeClient,
    connected,
    in_background,
    outcome,
    together,
    write_model,
)
from tests.boundary.running import Running
from tests.boundary.scraping import value
from tidal.service import ServiceContext
from tidal.triton import keeper
from tidal.triton.keeper import ServiceKeeper


@pytest.mark.server
def test_queue_capacity_is_free_once_the_response_is_read(ask: ProbeClient) -> None:
    """As many sequential clients as the capacity of the queue are never refused."""

    def client(index: int) -> set[str]:
        return {outcome(ask, "reply", model="small") for _ in range(100)}

    assert together(4, client) == [{"OK"}] * 4


@pytest.mark.server
def test_the_server_ends_by_itself_with_a_stuck_engine(tmp_path: Path) -> None:
    # A busy machine publishes seconds late that all four are in flight, and sends them seconds apart.
    write_model(tmp_path, "stuck", answer_timeout_s=18)
    with running_server(tmp_path, extra_backends=BACKENDS, exit_timeout_s=60) as server:
        with connected(server, *PROTOCOLS) as clients:
            one, other = clients
            sent = [in_background(outcome, one, "block", model="stuck", timeout_s=90)]
            assert until(lambda: value(server, "tidal_probe_in_flight_queries", "stuck") == 1)  # or others are answered
            sent += [
                in_background(outcome, ask, action, model="stuck", timeout_s=90)
                for ask, action in ((one, "reply"), (other, "block"), (other, "reply"))
            ]
            assert until(lambda: value(server, "tidal_probe_in_flight_queries", "stuck") == 4)
            os.kill(server.pid, signal.SIGTERM)
            assert [each.result(timeout=90) for each in sent] == ["UNAVAILABLE"] * 4
        assert until(lambda: server.process.exit_status() is not None)
        assert server.process.exit_status() == 0
        assert until(lambda: not server.processes())
        assert server.shared_memory() == {}


class Unending(Running):
    """A service whose `close` never returns."""

    def close(self, timeout_s: float) -> None:
        super().close(timeout_s)
        threading.Event().wait()


def test_a_failed_service_that_does_not_close_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "_CLOSE_GRACE_S", 0.1)
    services: list[Unending] = []

    def start(context: ServiceContext) -> Unending:
        services.append(Unending(context))
        return services[-1]

    context = make_context(Path(), failures=[])
    kept = ServiceKeeper(context, start, lambda error: None)
    services[0].context.failed(ValueError("broken"))
    assert until(lambda: len(services) == 2)
    assert services[0].closed.wait(20)
    # The end of the model does not wait for it either.
    ending = threading.Thread(target=kept.close, args=(0.1,), daemon=True)
    ending.start()
    ending.join(10)
    assert not ending.is_alive()
