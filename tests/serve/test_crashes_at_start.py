"""The tests' own servers: one that crashes while it starts is started once more, and ends with the test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from testing import servers
from testing.servers import running_server
from tidal.errors import Internal


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[int | None]], list[str]]:
    """Let servers end with these exit statuses while they start, None for one that serves; returns what happens."""

    def use(statuses: list[int | None]) -> list[str]:
        events: list[str] = []

        class Double:
            def __init__(self, *_: object) -> None:
                self._status = statuses.pop(0)
                events.append("started")

            def wait_live(self, *_: object) -> bool:
                if self._status is not None:
                    raise Internal(f"ended: {self._status}")
                return True

            def exit_status(self) -> int | None:
                return self._status

            def kill(self) -> None:
                events.append("ended")

        monkeypatch.setattr(servers, "ServerProcess", Double)
        return events

    return use


@pytest.mark.parametrize(
    ("statuses", "error"), [([None], None), ([-6, None], None), ([-6, -6], "ended: -6"), ([1], "ended: 1")]
)
def test_a_server_that_crashes_is_started_once_more(
    started: Callable[[list[int | None]], list[str]], tmp_path: Path, statuses: list[int | None], error: str | None
) -> None:
    events = started(list(statuses))
    if error is None:
        with running_server(tmp_path):
            assert events[-1] == "started"
    else:
        with pytest.raises(Internal, match=error), running_server(tmp_path):
            pass
    assert events == ["started", "ended"] * len(statuses)
