"""Record of one request, for the request log and its spans, and its line in the request log."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from typing import Any, NamedTuple

from tidal.options import TraceParent

# Ids and task names come from clients; a line must fit into an atomic write to a pipe (PIPE_BUF, 4096 bytes).
_MAX_TEXT_CHARS = 256
# Batches of one request that are recorded for its spans.
_MAX_BATCHES = 32
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class BatchRun(NamedTuple):
    """A batch that some rows of a request were part of.

    Attributes:
        began: Its start, by `time.monotonic()`, in seconds.
        ended: Its end, likewise.
        rows: Number of rows of all its requests.
        facts: Decisions of the system about it, by field name.
    """

    began: float
    ended: float
    rows: int
    facts: dict[str, Any]


class RequestRecord:
    """Facts about one request, collected while it is served; any thread may add some.

    Args:
        request_id: Id that the client gave to the request; empty if it gave none.
        arrival: Time of acceptance, by `time.monotonic()`, in seconds.
        rows: Number of queries; None if the request was refused before they were counted.
        task: Name of the request's task; None for none.
        from_model: Whether another model of the server sent the request.

    Attributes:
        tokens: Number of tokens of all rows, including special tokens; None if the model reads no tokens.
        facts: Decisions of the system by field name: `level`, `gamma`, `max_length`, `generated_tokens`.
        span: Span of the request; None if requests are not traced.
        parent: Span that it continues; None if it begins a trace.
        batches: First batches of a request whose spans are exported.
        batch_rows: Number of rows of its last batch; 0 if there was none.
    """

    __slots__ = (
        "_lock",
        "arrival",
        "batch_rows",
        "batches",
        "began",
        "ended",
        "facts",
        "from_model",
        "parent",
        "request_id",
        "rows",
        "span",
        "task",
        "tokens",
    )

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
        self.span: TraceParent | None = None
        self.parent: TraceParent | None = None
        self.batches: list[BatchRun] = []
        self.batch_rows = 0
        self._lock = threading.Lock()

    def ran(self, began: float, ended: float, rows: int = 1, **facts: Any) -> None:
        """Record a batch with some of the request's rows; recording it again changes nothing.

        Args:
            began: Its start, by `time.monotonic()`, in seconds.
            ended: Its end, likewise.
            rows: Number of rows of all its requests.
            facts: Decisions of the system about it, by field name.
        """
        with self._lock:
            self.began = began if self.began is None else min(self.began, began)
            self.ended = ended if self.ended is None else max(self.ended, ended)
            self.batch_rows = rows
            if self.span is not None and self.span.sampled and len(self.batches) < _MAX_BATCHES:
                batch = BatchRun(began, ended, rows, facts)
                if batch not in self.batches:
                    self.batches.append(batch)

    def add(self, name: str, amount: int) -> None:
        """Add an amount to a numeric fact, which starts at 0."""
        with self._lock:
            self.facts[name] = self.facts.get(name, 0) + amount


def line(record: RequestRecord, *, model: str, version: int, code: str, answered: float, wall: float) -> bytes:
    """Return the line of a request, as JSON with a newline.

    Args:
        record: Record of the request.
        model: Name of the model that answered.
        version: Version of the model.
        code: `OK` or the code of the error.
        answered: Time of the answer, by `time.monotonic()`, in seconds.
        wall: Time of the answer, in seconds since 1970.
    """
    began, ended = record.began, record.ended
    fields: dict[str, Any] = {
        "time": datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "id": record.request_id[:_MAX_TEXT_CHARS],
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
        fields["task"] = record.task[:_MAX_TEXT_CHARS]
    fields.update(record.facts.copy())
    if record.from_model:
        fields["from_model"] = True
    # A lone surrogate becomes `\udXXX`, as JSON writes it.
    return _encode(fields).encode("utf-8", "backslashreplace") + b"\n"


def _ms(seconds: float) -> float:
    return round(max(0.0, seconds) * 1e3, 3)
