"""Guarantees: their bounds, and their rows in the report."""

from __future__ import annotations

from collections import Counter

import pytest

from reliability.load import OK, BackgroundLoad, EndedRequest
from reliability.rows import COLUMNS, Guarantee, cells, markdown, none_failed
from reliability.run import counted
from reliability.server_under_test import ServerUnderTest


@pytest.mark.parametrize(
    ("measured", "bound", "holds"),
    [(5.0, "<= 5", True), (5.1, "<= 5", False), (0.9, ">= 0.9", True), (0.8, ">= 0.9", False), (0.0, "== 0", True)],
)
def test_a_figure_is_compared_with_its_bound(measured: float, bound: str, holds: bool) -> None:
    assert Guarantee("it", 1, 1, 0, measured, "s", bound).holds is holds
    assert not Guarantee("it", 1, 1, 0, measured, "s", bound, enough=False).holds
    assert not Guarantee("it", 1, 1, 1, measured, "s", bound).holds


def test_no_failure_needs_enough_requests() -> None:
    assert none_failed("it", 1000, 3, [], quick=False).holds
    for requests, changes in ((999, 3), (1000, 2)):
        row = none_failed("it", requests, changes, [], quick=False)
        assert not row.holds
        assert "rests on less" in row.note
        assert none_failed("it", requests, changes, [], quick=True).holds
    failed = none_failed("it", 1000, 3, ["DEADLINE_EXCEEDED: a", "b"], quick=True)
    assert (failed.failed, failed.note, failed.holds) == (2, "DEADLINE_EXCEEDED: a", False)


def test_the_page_has_a_line_for_each_row() -> None:
    row = Guarantee("what | is", 12345, 0, 0, 1234.5, "ms", "<= 2000", "two\nlines")
    page = markdown([row, row], "On a machine.")
    lines = page.splitlines()
    assert lines[4] == f"| {' | '.join(COLUMNS)} |"
    assert lines[6] == lines[7] == "| what / is | 12,345 | - | 0 | 1,234 ms | <= 2000 | yes | two lines |"
    assert cells(row)[6] == "yes"


def test_failures_are_those_of_the_named_models() -> None:
    load = BackgroundLoad("127.0.0.1:1", "127.0.0.1:1", [])
    load.sent = [
        EndedRequest("a", 0, 1, OK),
        EndedRequest("a", 0, 1, "INTERNAL: x"),
        EndedRequest("b", 0, 1, "DEADLINE_EXCEEDED: y"),
    ]
    assert load.failures() == ["a: INTERNAL: x", "b: DEADLINE_EXCEEDED: y"]
    assert load.failures(["b"]) == ["b: DEADLINE_EXCEEDED: y"]
    assert load.answered() == Counter(a=1)


def test_counters_must_agree_in_every_load() -> None:
    target = ServerUnderTest.__new__(ServerUnderTest)
    target.counted = [("a", 10, 10), ("b", 5, 7), ("b", 7, 5)]  # what one has too many the other lacks
    row = counted(target)
    assert (row.requests, row.failed, row.holds) == (22, 4, False)
    assert row.note == "b: 5 read, 7 counted; b: 7 read, 5 counted"
