"""Static batches: the requests within a window, or a fixed number, run to the end together."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial

from benchmarks.flover.serving.engines import Engine
from benchmarks.flover.serving.outbox import GenerationJob, Ids


class Batches:
    """Forms a batch, runs it until its longest request has all tokens, and forms the next one.

    Args:
        engine: Engine to generate with.
        most: Largest number of requests of a batch.
        window_s: Seconds from the arrival of the first waiting request until its batch is formed; None: batches always
            have `most` requests.

    Attributes:
        calls: Number of passes so far, without prefill.
    """

    def __init__(self, engine: Engine, most: int, window_s: float | None) -> None:
        self._worker = engine.worker()
        self._most, self._window_s = most, window_s
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, GenerationJob]] = []
        self._closing = False
        self.calls = 0
        threading.Thread(target=self._run, name="batches", daemon=True).start()

    def submit(self, job: GenerationJob) -> None:
        """Queue a request."""
        with self._changed:
            self._waiting.append((time.monotonic(), job))
            self._changed.notify()

    def close(self) -> None:
        """Stop forming batches."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def _run(self) -> None:
        while jobs := self._form():
            try:
                self._worker.generate(
                    [job.prompt for job in jobs],
                    max(job.wanted for job in jobs),
                    partial(self._add_tokens, jobs),
                )
            except Exception as error:
                for job in jobs:
                    job.fail(f"{type(error).__name__}: {error}")

    def _form(self) -> list[GenerationJob]:
        with self._changed:
            while not self._closing:
                left = self._left(time.monotonic())
                if left == 0:
                    batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                    return [job for _, job in batch]
                self._changed.wait(left)
        return []

    def _left(self, now: float) -> float | None:
        """Seconds until the next batch is formed; None: when another request arrives."""
        if len(self._waiting) >= self._most:
            return 0
        if not self._waiting or self._window_s is None:
            return None
        return max(0.0, self._waiting[0][0] + self._window_s - now)

    def _add_tokens(self, jobs: Sequence[GenerationJob], tokens: Ids) -> None:
        if jobs[0].received or not jobs[0].open:
            self.calls += 1
        for job, token in zip(jobs, tokens.tolist(), strict=True):
            job.add(token)
