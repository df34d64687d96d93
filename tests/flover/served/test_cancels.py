"""A short run of the cancellation benchmark: clients cancel at random moments, on a real server."""

from __future__ import annotations

import pytest

from benchmarks.flover.cancels import Target, run
from testing.decoders import POSITIONS, VOCABULARY
from tests.flover.served.conftest import SLOTS, Served

pytestmark = pytest.mark.server


def test_cancelled_requests_leak_no_slot_and_no_memory(served: Served) -> None:
    (process,) = served.server.stub_pids("writer")
    found = run(
        Target(
            "writer",
            served.url("http"),
            served.url("grpc"),
            served.server.metrics,
            process,
            SLOTS["writer"],
            POSITIONS,
            VOCABULARY,
        ),
        count=100,
        warm_up=40,
    )
    assert (found.slots_lost, found.open_requests, found.others_harmed) == (0, 0, 0)
    assert found.cancelled == 100
    assert found.in_stream > 0
    assert found.others > 0
    assert found.memory_grown_mib < 8
