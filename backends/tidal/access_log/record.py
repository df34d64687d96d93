"""What the request log says about one request."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from typing import Any

# Ids and task names come from clients: a line must stay within what a pipe takes in one piece (PIPE_BUF, 4096 bytes).
_LONGEST_TEXT = 256
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class RequestRecord:
    """Facts about one request, collected while it is served; any thread may add some.

    Args:
        request_id: Id that the client gave, or an empty text.
        arrival: `time.monotonic()` seconds of its acceptance.
        rows: Number of queries in it, None where it was refused before they were counted.
        task: Task that it names, if any.
        from_model: Whether another model of the server sent it, not a client.

    Attributes:
        tokens: Tokens of all its rows, special tokens included; None where the model reads none.
        facts: What the system decided about it, by field name: `level`, `gamma`, `max_length`, `generated_tokens`.
    """

    __slots__ = ("_lock", "arrival", "began", "ended", "facts", "from_model", "request_id", "rows", "task", "tokens")

    def __init__(
        self,
        request_id: str,
        arrival: float,
        *,
        rows: int | None = None,
        task: str | None = None,
        from_model: bool = False,
    ) -> None:
        self.request_id = request_id
        self.arrival = arrival
        self.rows = rows
        self.task = task
        self.from_model = from_model
        self.tokens: int | None = None
        self.facts: dict[str, Any] = {}
        self.began: float | None = None
        self.ended: float | None = None
        self._lock = threading.Lock()

    def ran(self, began: float, ended: float) -> None:
        """Note that a batch with some of its rows ran, from `began` to `ended` (`time.monotonic()` seconds)."""
        with self._lock:
            self.began = began if self.began is None else min(self.began, began)
            self.ended = ended if self.ended is None else max(self.ended, ended)

    def add(self, name: str, amount: int) -> None:
        """Add to a fact that is a number, which starts at 0."""
        with self._lock:
            self.facts[name] = self.facts.get(name, 0) + amount


def line(record: RequestRecord, *, model: str, version: int, code: str, answered: float, wall: float) -> bytes:
    """One line of the log.

    Args:
        record: Of the request.
        model: Name of the model that answered.
        version: Its version.
        code: `OK` or the error's code.
        answered: `time.monotonic()` seconds of the answer.
        wall: The same moment as seconds since 1970.
    """
    began, ended = record.began, record.ended
    fields: dict[str, Any] = {
        "time": datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "id": record.request_id[:_LONGEST_TEXT],
        "model": model,
        "version": version,
        "rows": record.rows,
        "tokens": record.tokens,
        "queue_ms": None if began is None else _ms(began - record.arrival),
        "execute_ms": None if began is None or ended is None else _ms(ended - began),
        "total_ms": _ms(answered - record.arrival),
        "code": code,
    }
    if record.task is not None:
        fields["task"] = record.task[:_LONGEST_TEXT]
    fields.update(record.facts.copy())
    if record.from_model:
        fields["from_model"] = True
    # A lone surrogate becomes `\udXXX`, which is JSON for it.
    return _encode(fields).encode("utf-8", "backslashreplace") + b"\n"


def _ms(seconds: float) -> float:
    return round(max(0.0, seconds) * 1e3, 3)
