"""Errors that end requests: their sentences, and when cancellation is checked."""

from __future__ import annotations

import pytest

from testing.requests import FakeRequest
from tidal.errors import Cancelled, Internal, NotFound, Unavailable
from tidal.serving.endings import (
    CHECK_CANCELLED_AFTER_S,
    cancellation,
    deadline_passed,
    failure,
    missed_in_queue,
    model_stops,
)


class CountedChecks(FakeRequest):
    """Counts checks for cancellation, each of which is a call to the server process."""

    checks = 0

    def cancelled(self) -> bool:
        self.checks += 1
        return super().cancelled()


@pytest.mark.parametrize("withdrawn", [False, True])
def test_cancellation_is_checked_for_requests_that_waited(withdrawn: bool) -> None:
    request = CountedChecks({})
    request.withdrawn = withdrawn
    assert cancellation(request, request.arrival + CHECK_CANCELLED_AFTER_S / 2) is None
    assert request.checks == 0
    error = cancellation(request, request.arrival + 2 * CHECK_CANCELLED_AFTER_S)
    assert request.checks == 1
    assert not request.answered
    if withdrawn:
        assert isinstance(error, Cancelled)
        assert str(error) == "the client cancelled the request while it waited"
    else:
        assert error is None


def test_a_missed_deadline_names_the_deadline_and_the_wait() -> None:
    request = FakeRequest({}, latency_ms=12.5)
    error = missed_in_queue(request, request.arrival + 0.0304)
    assert isinstance(error, Unavailable)
    assert str(error) == "the deadline of 12.5 ms cannot be met: 30 ms have passed in the queue"
    by_default = missed_in_queue(FakeRequest({}), request.arrival, latency_ms=200)
    assert str(by_default).startswith("the deadline of 200 ms cannot be met")


def test_other_sentences() -> None:
    assert str(deadline_passed(80.0, "an answer")) == "the deadline of 80 ms passed before an answer"
    assert isinstance(model_stops(), Unavailable)
    assert str(model_stops()) == "the model is being unloaded; send the request again"


def test_a_failure_keeps_errors_with_a_code_and_explains_others() -> None:
    own = NotFound("no such thing")
    assert failure(own, "the engine failed") is own
    other = failure(ValueError("bad shape"), "the engine failed")
    assert isinstance(other, Internal)
    assert str(other) == "the engine failed: bad shape"
