"""A service that fails: open requests are answered with the cause, and a new service starts."""

from __future__ import annotations

import pytest

from testing.servers import RunningServer
from testing.waiting import until
from tests.boundary.clients import ProbeClient, holds, outcome
from tests.boundary.clients import in_background as background
from tests.boundary.scraping import value
from tidal_client.errors import RequestError

pytestmark = pytest.mark.server


@pytest.mark.parametrize(
    ("action", "cause"),
    [("raise-in-submit", "ValueError: raised in submit"), ("raise-in-thread", "KeyError: 'raised in thread'")],
)
def test_open_requests_get_the_cause_and_later_ones_work(
    server: RunningServer, clients: dict[str, ProbeClient], fresh: str, action: str, cause: str
) -> None:
    for ask in clients.values():
        fail_once(ask, fresh, action, cause)
    assert until(lambda: value(server, "tidal_probe_service_restarts_total", fresh) == len(clients))
    assert cause in server.log_text()


def fail_once(ask: ProbeClient, fresh: str, action: str, cause: str) -> None:
    waiting = [background(ask, each, model=fresh) for each in ("hold", "sleep 60000", "hold")]
    assert holds(ask, 3, fresh)
    with pytest.raises(RequestError, match=f"the model failed: {cause}") as refused:
        ask(action, model=fresh)
    assert refused.value.code == "INTERNAL"
    for each in waiting:
        error = each.exception(timeout=60)
        assert isinstance(error, RequestError)
        assert (error.code, cause in str(error)) == ("INTERNAL", True)
    assert until(lambda: outcome(ask, "reply", model=fresh) == "OK")


def test_a_service_that_keeps_failing_backs_off(
    server: RunningServer, clients: dict[str, ProbeClient], fresh: str
) -> None:
    ask = clients["grpc"]
    assert outcome(ask, "fail-starts 3", model=fresh) == "OK"
    assert outcome(ask, "raise-in-thread", model=fresh) == "INTERNAL"
    outcomes: list[str] = []

    def refused() -> bool:
        try:
            ask("reply", model=fresh)
        except RequestError as error:
            return error.code == "UNAVAILABLE" and "restarting after a failure (RuntimeError: no start" in str(error)
        return False

    # Pauses of 0, 0.1, 0.2 and 0.4 s, while requests are refused at once with the cause.
    assert until(refused)

    def answered() -> bool:
        outcomes.append(outcome(ask, "reply", model=fresh))
        return outcomes[-1] == "OK"

    assert until(answered)
    # A request that is accepted between a start and its failure gets the error of the failure.
    assert set(outcomes[:-1]) <= {"UNAVAILABLE", "INTERNAL"}
    assert outcomes.count("UNAVAILABLE") > outcomes.count("INTERNAL")
    assert until(lambda: value(server, "tidal_probe_service_restarts_total", fresh) == 4)
    assert "RuntimeError: no start as asked" in server.log_text()
