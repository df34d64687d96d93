"""/metrics agrees with the responses that clients got."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from testing.servers import RunningServer
from testing.waiting import until
from tests.boundary.clients import ProbeClient, outcome, together, write_model
from tests.boundary.scraping import value, values

pytestmark = pytest.mark.server


def _counted(server: RunningServer, model: str) -> dict[str, float]:
    series = values(server, "tidal_probe_requests_total", model)
    return {dict(labels)["code"]: count for labels, count in series.items()}


def test_counts_equal_those_of_the_clients(server: RunningServer, clients: dict[str, ProbeClient], fresh: str) -> None:
    choices: list[tuple[str, dict[str, object]]] = [
        ("reply", {}),
        ("sleep 5", {}),
        ("drop", {}),
        ("wrong-rows", {}),
        ("twice", {}),
        ("hold", {"latency_ms": 40}),
        ("reply", {"unknown": 1}),
        ("no such action", {}),
    ]
    chosen = random.Random(4).choices(choices, k=300)
    mixed = [clients["http"], clients["grpc"]]

    def one(worker: int) -> list[str]:
        mine = chosen[worker::6]
        return [outcome(mixed[i % 2], action, model=fresh, **options) for i, (action, options) in enumerate(mine)]

    seen = Counter(code for codes in together(6, one) for code in codes)
    assert seen.total() == 300
    assert set(seen) == {"OK", "INTERNAL", "UNAVAILABLE", "INVALID_ARG"}
    assert until(lambda: _counted(server, fresh) == dict(seen)), _counted(server, fresh)
    # A request that is refused before it reaches the service has no latency.
    accepted = sum("unknown" not in options for _, options in chosen)
    assert 200 < accepted < 300
    assert until(lambda: value(server, "tidal_probe_request_seconds_count", fresh) == accepted)
    assert until(lambda: value(server, "tidal_probe_request_seconds_bucket", fresh, le="+Inf") == accepted)
    buckets = values(server, "tidal_probe_request_seconds_bucket", fresh)
    assert [buckets[("le", bound),] for bound in ("0.001", "0.01", "0.1", "1", "30")] == sorted(
        buckets[("le", bound),] for bound in ("0.001", "0.01", "0.1", "1", "30")
    )
    assert until(lambda: value(server, "tidal_probe_in_flight_queries", fresh) == 0)


def test_counters_continue_after_a_reload(server: RunningServer, clients: dict[str, ProbeClient], fresh: str) -> None:
    for note, ask in (("a", clients["grpc"]), ("b", clients["http"]), ("c", clients["grpc"])):
        write_model(server.repository, fresh, note=note)
        server.control.load(fresh, None)
        assert ask("reply", model=fresh)["echo"].item() == f"reply{note}".encode()
    assert until(lambda: _counted(server, fresh) == {"OK": 3}), _counted(server, fresh)
    assert until(lambda: value(server, "tidal_probe_request_seconds_count", fresh) == 3)


def test_missed_deadlines_are_counted(server: RunningServer, clients: dict[str, ProbeClient], fresh: str) -> None:
    family = "tidal_probe_deadline_missed_total"
    for ask in clients.values():
        assert outcome(ask, "reply", model=fresh, latency_ms=10_000) == "OK"
        assert outcome(ask, "hold", model=fresh, latency_ms=30) == "UNAVAILABLE"
        assert outcome(ask, "no such action", model=fresh, latency_ms=10_000) == "INVALID_ARG"
    assert until(lambda: sum(_counted(server, fresh).values()) == 6)
    assert until(lambda: value(server, family, fresh) == 2)
