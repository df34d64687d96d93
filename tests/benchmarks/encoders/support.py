"""Parts of the tests of the benchmark of encoders: made-up measurements, and a system that answers nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.encoders.load import LoadResult
from benchmarks.encoders.run import EncoderCell, EncoderRun
from benchmarks.encoders.workload import Rows


def made(per_second: float, *, p99_ms: float = 10.0) -> EncoderCell:
    """A measurement with this throughput and tail."""
    return EncoderCell(per_second, 5.0, 4.0, p99_ms, failed=0, utilisation=0.9, client=0.01, mean_batch=2.0)


def made_run(tmp_path: Path, **cells: dict[str, list[EncoderCell]]) -> EncoderRun:
    return EncoderRun(tmp_path / "run.json", cells=cells)


class FakeSide:
    """A system that uses 0.02 CPU seconds and forms a batch of 4 rows per measurement."""

    def __init__(self, latencies_ms: Sequence[float] = (1.0, 2.0, 3.0)) -> None:
        self._latencies, self._calls = np.array(latencies_ms), 0
        self.least = 0  # number of answers that the last measurement asked for

    def encode(self, requests: Sequence[Rows]) -> Sequence[Rows]:
        return requests

    def closed(
        self, payloads: Sequence[Any], *, in_flight: int, seconds: float, warm_s: float, least: int = 0
    ) -> LoadResult:
        self._calls += 1
        self.least = least
        time.sleep(0.02)
        return LoadResult(30.0, self._latencies, 1, 0.001, seconds, "failed")

    def open(self, payloads: Sequence[Any], times: Any) -> LoadResult:
        return self.closed(payloads, in_flight=0, seconds=1.0, warm_s=0.0)

    def answer(self, rows: Rows) -> Any:
        return np.array([[float(len(str(row)))] for row in rows])

    def cpu_seconds(self) -> float:
        return 0.02 * self._calls

    def counts(self) -> tuple[float, float] | None:
        return 4.0 * self._calls, 1.0 * self._calls
