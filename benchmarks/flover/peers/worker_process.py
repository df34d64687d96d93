"""The process of a peer, which answers calls one after another."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.environments import GENAI, python

_SCRIPT = Path(__file__).with_name("genai_worker.py")
_CLOSING_S = 20.0


class PeerFailed(Exception):
    """The peer refused a call or ended; the message has its own."""


class Worker:
    """Starts the process; its output goes to a file.

    Args:
        log: File of its output.
        command: Command to start.
    """

    def __init__(self, log: Path, command: tuple[str, ...] = (str(python(GENAI)), str(_SCRIPT))) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        with log.open("w") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True
            )

    def call(self, name: str, **arguments: Any) -> Any:
        """Call a function of the process and return its result.

        Raises:
            PeerFailed: It failed, or the process ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"call": name, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            last = (self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no output"])[-1]
            raise PeerFailed(f"'{name}' ended the process: {last}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerFailed(f"'{name}' failed: {answer['error']}")
        return answer["result"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_CLOSING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
