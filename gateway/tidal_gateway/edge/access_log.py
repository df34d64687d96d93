"""The access log: one line of JSON per request, formatted and written by a thread in batches."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from tidal.access_log.target import LogTarget, check_file, descriptor_target
from tidal_gateway.edge.exchange import Exchange

_COLLECT_S: Final = 0.1
_CAPACITY: Final = 100_000
_MAX_CHARS: Final = 256

_log = logging.getLogger("tidal_gateway")


def log_target(text: str) -> str:
    """Return the target of a setting: a path, or ``-`` for standard output.

    Raises:
        InvalidArgument: The file cannot be opened.
    """
    return descriptor_target(sys.stdout.fileno()) if text == "-" else str(check_file(Path(text)))


def log_line(exchange: Exchange, wall_s: float, ms: float) -> bytes:
    """Return the line of a request, with a newline. It has no key, header, text or address of a model's file.

    Args:
        exchange: Answered request.
        wall_s: Time of the answer, in seconds since 1970.
        ms: Time from the arrival of the request to the answer, in milliseconds.
    """
    fields: dict[str, Any] = {
        "time": datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "id": exchange.request_id,
        "client": exchange.client,
        "method": exchange.method,
        "path": exchange.path[:_MAX_CHARS],
        "status": exchange.status,
        "ms": round(ms, 3),
    }
    optional: dict[str, Any] = {
        "code": exchange.code,
        "key": exchange.key,
        "model": exchange.model,
        "task": exchange.task[:_MAX_CHARS],
        "input_tokens": exchange.input_tokens,
        "output_tokens": exchange.output_tokens,
        "retries": exchange.retries,
        "first_part_ms": None if exchange.first_part_s is None else round(exchange.first_part_s * 1e3, 3),
    }
    fields.update({name: value for name, value in optional.items() if value})
    try:
        return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a lone surrogate in a name
        clean = {name: _clean(value) for name, value in fields.items()}
        return orjson.dumps(clean, option=orjson.OPT_APPEND_NEWLINE)


def _clean(value: Any) -> Any:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


class AccessLog:
    """Writes lines to a target; those that cannot be written are dropped and counted.

    Args:
        target: Result of `log_target`.
    """

    def __init__(self, target: str) -> None:
        self._target = LogTarget(target)
        # Answered requests, with the times of their lines.
        self._waiting: list[tuple[Exchange, float, float]] = []
        self.dropped = 0

    def write(self, exchange: Exchange) -> None:
        """Log an answered request; returns at once."""
        if len(self._waiting) >= _CAPACITY:
            self.dropped += 1
            return
        self._waiting.append((exchange, time.time(), exchange.elapsed_s() * 1e3))

    async def run(self) -> None:
        """Write lines until the task is cancelled."""
        while True:
            await asyncio.sleep(_COLLECT_S)
            if self._waiting:
                await asyncio.to_thread(self.flush)

    def flush(self) -> None:
        """Write the lines that wait."""
        waiting, self._waiting = self._waiting, []
        chunk: list[bytes] = []
        size = 0
        for exchange, wall_s, ms in waiting:
            line = log_line(exchange, wall_s, ms)
            if chunk and size + len(line) > self._target.max_bytes:
                self._append(chunk)
                chunk, size = [], 0
            chunk.append(line)
            size += len(line)
        if chunk:
            self._append(chunk)

    def _append(self, lines: list[bytes]) -> None:
        try:
            self._target.write(b"".join(lines))
        except OSError as error:
            if not self.dropped:
                _log.error("the access log cannot be written: %s", error)
            self.dropped += len(lines)

    def close(self) -> None:
        """Write the last lines and close the file."""
        self.flush()
        self._target.close()
