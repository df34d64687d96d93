"""The request log without a server: lines, rotation, several processes, and targets that fail."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from testing.waiting import until
from tidal.access_log.record import RequestRecord, line
from tidal.access_log.target import ACCESS_LOG_VARIABLE, LogTarget, check_file, descriptor_target
from tidal.access_log.writer import AccessLog, open_access_log
from tidal.errors import InvalidArgument
from tidal.metrics import Counter


class Lines(logging.Handler):
    """Messages of a model's own log."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


class LogHarness:
    """An access log, the model's own log, and the counter of dropped lines."""

    def __init__(self, target: LogTarget, capacity: int = 100) -> None:
        self.dropped = Counter()
        self.own = Lines()
        log = logging.getLogger(f"access-log-{id(self)}")
        log.propagate = False
        log.addHandler(self.own)
        self.log = AccessLog(target, "m", 3, log=log, dropped=self.dropped, capacity=capacity)

    def answer(self, name: str, code: str = "OK") -> None:
        self.log.write(RequestRecord(name, 10.0, rows=1), code, 10.5)


@contextmanager
def writing(target: str, capacity: int = 100) -> Iterator[LogHarness]:
    harness = LogHarness(LogTarget(target), capacity)
    try:
        yield harness
    finally:
        harness.log.close()


def ids(path: Path) -> list[str]:
    """Identifiers of the complete lines: the last one may be in the middle of its writing."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(each)["id"] for each in lines if each.endswith("\n")]


def test_a_line_has_all_known_fields() -> None:
    record = RequestRecord("a\nb", 10.0, rows=2, task="intents", from_model=True)
    record.tokens = 17
    record.ran(10.25, 10.5)
    record.ran(10.2, 10.3)
    record.facts["level"] = [1, 2]
    record.add("generated_tokens", 3)
    record.add("generated_tokens", 4)
    text = line(record, model="m", version=3, code="OK", answered=11.0, wall=0.5)
    assert text.endswith(b"\n")
    assert text.count(b"\n") == 1
    assert json.loads(text) == {
        "time": "1970-01-01T00:00:00.500Z",
        "id": "a\nb",
        "model": "m",
        "version": 3,
        "rows": 2,
        "tokens": 17,
        "queue_ms": 200.0,
        "execute_ms": 300.0,
        "total_ms": 1000.0,
        "code": "OK",
        "task": "intents",
        "level": [1, 2],
        "generated_tokens": 7,
        "from_model": True,
    }


@pytest.mark.parametrize("name", ["\ud800", "é" * 1000, "\x00" * 1000, "𝄞" * 1000, '"\\'])
def test_a_client_cannot_break_a_line(name: str) -> None:
    text = line(RequestRecord(name, 0.0, task=name), model="m", version=1, code="OK", answered=0.0, wall=0.0)
    found: dict[str, Any] = json.loads(text)
    assert found["id"] == name[:256]
    assert found["rows"] is found["tokens"] is found["queue_ms"] is None
    assert len(text) <= 4096


def test_lines_are_written_in_order_and_at_the_end(tmp_path: Path) -> None:
    with writing(str(tmp_path / "log")) as harness:
        for number in range(50):
            harness.answer(f"{number}")
        assert until(lambda: len(ids(tmp_path / "log")) == 50)
        harness.answer("last")
    assert ids(tmp_path / "log") == [*map(str, range(50)), "last"]
    assert (tmp_path / "log").stat().st_mode & 0o007 == 0


def test_a_renamed_and_a_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with writing(str(path)) as harness:
        harness.answer("before")
        assert until(lambda: ids(path) == ["before"])
        path.rename(tmp_path / "log.1")  # like logrotate's `nocreate`
        harness.answer("after")
        assert until(lambda: ids(path) == ["after"])
        path.rename(tmp_path / "log.2")
        path.touch()  # like its `create`
        harness.answer("created")
        assert until(lambda: ids(path) == ["created"])
        os.truncate(path, 0)  # like its `copytruncate`
        harness.answer("again")
        assert until(lambda: ids(path) == ["again"])
    assert ids(tmp_path / "log.1") == ["before"]
    assert harness.dropped.value == 0


def test_a_full_disk_is_reported_once_and_counted() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        with writing(descriptor_target(full)) as harness:
            for count in (1, 2, 3):
                harness.answer("lost")
                assert until(lambda count=count: harness.dropped.value == count)
        assert harness.own.messages == [
            "the access log cannot be written: [Errno 28] No space left on device; lines are dropped until it can be"
        ]
    finally:
        os.close(full)


def test_lines_are_written_again_once_the_folder_exists(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "log"
    with writing(str(path)) as harness:
        harness.answer("lost")
        assert until(lambda: harness.dropped.value == 1)
        path.parent.mkdir()
        harness.answer("kept")
        assert until(lambda: ids(path) == ["kept"])
    assert harness.own.messages[-1] == "the access log is written again; 1 lines were dropped"


def test_a_reader_that_does_not_read_blocks_no_writer() -> None:
    reading, written = os.pipe()
    try:
        with writing(descriptor_target(written), capacity=1000) as harness:
            for number in range(5000):  # many more than the pipe holds
                harness.answer(f"{number}")
            assert harness.dropped.value > 0
            seen = b""
            while seen.count(b"\n") < 1000:  # queued lines are written once there is a reader
                seen += os.read(reading, 1 << 16)
        found = [int(json.loads(each)["id"]) for each in seen.splitlines()]
        assert found == sorted(set(found))
        assert harness.own.messages == []
    finally:
        os.close(reading)
        os.close(written)


def test_lines_to_a_closed_pipe_are_dropped() -> None:
    reading, written = os.pipe()
    os.close(reading)
    with writing(descriptor_target(written)) as harness:
        harness.answer("lost")
        assert until(lambda: harness.dropped.value == 1)
    os.close(written)
    assert "Broken pipe" in harness.own.messages[0]


_PROCESS = """
import logging, sys
from tidal.access_log.record import RequestRecord
from tidal.access_log.target import LogTarget
from tidal.access_log.writer import AccessLog
from tidal.metrics import Counter
log = AccessLog(LogTarget(sys.argv[1]), sys.argv[2], 1, log=logging.getLogger(), dropped=Counter(), capacity=100_000)
for number in range(2000):
    log.write(RequestRecord(f"{sys.argv[2]}-{number}" + "x" * (number % 200), 0.0), "OK", 1.0)
    if number % 500 == 0:
        log._closing.wait(0.02)
while log._answered:
    log._closing.wait(0.02)
log.close()
"""


# Slower than the writers, in blocks of another size, so that the pipe is full in the middle of lines.
_READER = """
import os, sys, time
with open(sys.argv[1], "wb") as file:
    while chunk := os.read(0, 3001):
        file.write(chunk)
        time.sleep(0.0002)
"""


@pytest.mark.parametrize("through", ["file", "pipe"])
def test_lines_of_several_processes_do_not_interleave(tmp_path: Path, through: str) -> None:
    path = tmp_path / "log"
    reader = [sys.executable, "-c", _READER, str(path)]
    pipe = subprocess.Popen(reader, stdin=subprocess.PIPE) if through == "pipe" else None
    number = pipe.stdin.fileno() if pipe is not None and pipe.stdin is not None else -1
    target = str(path) if pipe is None else descriptor_target(number)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _PROCESS, target, f"m{each}"], pass_fds=() if pipe is None else (number,)
        )
        for each in range(3)
    ]
    assert [each.wait(120) for each in writers] == [0, 0, 0]
    if pipe is not None:
        pipe.communicate()
    found = [json.loads(each) for each in path.read_text().splitlines()]
    assert len({each["id"] for each in found}) == len(found) == 6_000


def test_invalid_targets_are_refused_at_the_start(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "no" / "log", "No such file or directory"), (tmp_path, "is not a regular file")):
        with pytest.raises(InvalidArgument, match=why) as refused:
            check_file(path)
        assert "or - for standard output" in str(refused.value)
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a reader
    with pytest.raises(InvalidArgument, match="is not a regular file"):
        check_file(tmp_path / "pipe")
    assert check_file(tmp_path / "log") == tmp_path / "log"


def test_without_a_target_there_is_no_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(ACCESS_LOG_VARIABLE, raising=False)
    assert open_access_log("m", 1, logging.getLogger(), Counter()) is None
    monkeypatch.setenv(ACCESS_LOG_VARIABLE, str(tmp_path / "log"))
    log = open_access_log("m", 1, logging.getLogger(), Counter())
    assert log is not None
    log.write(RequestRecord("one", 0.0), "OK", 1.0)
    log.close()
    assert ids(tmp_path / "log") == ["one"]
