"""Services that hang: clients, restarts and the end of the server do not wait for them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from testing.requests import make_context
from testing.waiting import until
from tests.boundary.clients import (
    ProbeClient,
    outcome,
    together,
)
from tests.boundary.test_keeper import Running
from tidal.service import ServiceContext
from tidal.triton.keeper import ServiceKeeper


@pytest.mark.server
def test_queue_capacity_is_free_once_the_response_is_read(ask: ProbeClient) -> None:
    """As many sequential clients as the capacity of the queue are never refused."""

    def client(index: int) -> set[str]:
        return {outcome(ask, "reply", model="small") for _ in range(100)}

    assert together(4, client) == [{"OK"}] * 4


class Unending(Running):
    """A service whose `close` never returns."""

    def close(self, timeout_s: float) -> None:
        super().close(timeout_s)
        threading.Event().wait()


def test_a_failed_service_that_does_not_close_is_replaced() -> None:
    services: list[Unending] = []

    def start(context: ServiceContext) -> Unending:
        services.append(Unending(context))
        return services[-1]

    context = make_context(Path(), failures=[])
    keeper = ServiceKeeper(context, start, lambda error: None)
    services[0].context.failed(ValueError("broken"))
    assert until(lambda: len(services) == 2)
    assert services[0].closed.is_set()
    # The end of the model does not wait for it either.
    ending = threading.Thread(target=keeper.close, args=(0.1,), daemon=True)
    ending.start()
    ending.join(10)
    assert not ending.is_alive()
