"""Clients that leave at random moments, through the real server: the benchmark of 1,000 in its short form."""

from __future__ import annotations

import pytest

from benchmarks.flover.cancels import Target, run
from testing.decoders import POSITIONS, VOCABULARY
from tests.flover.served.conftest import SLOTS, Served

pytestmark = pytest.mark.server


def test_they_leave_no_slot_taken_and_no_memory(served: Served) -> None:
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
