"""A request whose rows run in several batches, and a lease that its rows share."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from testing.requests import FakeRequest
from tidal.errors import Cancelled, Internal, TidalError
from tidal.serving.endings import CHECK_CANCELLED_AFTER_S
from tidal.serving.rows import RequestRows
from tidal.tasks.lease import Lease, SharedLease

LATER_S = 2 * CHECK_CANCELLED_AFTER_S


def test_the_last_result_completes_a_request() -> None:
    rows = RequestRows[str](FakeRequest({}, rows=3), 3)
    assert [rows.finish(row, f"row {row}") for row in (2, 0, 1)] == [False, False, True]
    assert rows.results == ["row 0", "row 1", "row 2"]


def test_exactly_one_thread_completes_a_request() -> None:
    for _ in range(30):
        count = 8
        rows, start = RequestRows[int](FakeRequest({}), count), threading.Barrier(count)

        def finish(row: int, rows: RequestRows[int] = rows, start: threading.Barrier = start) -> bool:
            start.wait()
            return rows.finish(row, row)

        with ThreadPoolExecutor(count) as pool:
            assert sum(pool.map(finish, range(count))) == 1
        assert rows.results == list(range(count))


class Counted(FakeRequest):
    """Counts calls of `fail`, of which the first one answers."""

    calls = 0

    def fail(self, error: TidalError) -> None:
        self.calls += 1
        super().fail(error)


def test_the_first_failure_ends_a_request() -> None:
    request = Counted({})
    rows = RequestRows[str](request, 2)
    assert rows.wanted(request.arrival)
    first = Internal("first")
    rows.fail(first)
    rows.fail(Internal("second"))
    assert (request.error, request.calls, rows.ended) == (first, 1, True)
    assert not rows.wanted(request.arrival)


def test_rows_of_an_answered_request_are_not_wanted() -> None:
    request = FakeRequest({})
    rows = RequestRows[str](request, 1)
    request.fail(Internal("the boundary answered it"))
    assert not rows.wanted(request.arrival + LATER_S)
    assert not rows.ended


def test_a_cancelled_request_is_failed_once_it_waited() -> None:
    request = FakeRequest({})
    request.withdrawn = True
    rows = RequestRows[str](request, 1)
    assert rows.wanted(request.arrival)
    assert not rows.wanted(request.arrival + LATER_S)
    assert isinstance(request.error, Cancelled)
    assert rows.ended


def test_a_shared_lease_is_released_with_its_last_holder() -> None:
    released: list[str] = []
    shared = SharedLease(Lease("task", lambda: released.append("task")), 3)
    shared.release()
    shared.release()
    assert released == []
    shared.release()
    assert released == ["task"]
