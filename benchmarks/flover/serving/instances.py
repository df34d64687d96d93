"""Concurrent instances: one thread per request, with shared weights (the paper's baseline)."""

from __future__ import annotations

import itertools
import queue
import threading

from benchmarks.flover.serving.engines import Engine, Worker
from benchmarks.flover.serving.outbox import GenerationJob, Ids


class Instances:
    """Generates for each request separately.

    Attributes:
        calls: Number of passes so far, without prefill.

    Args:
        engine: Engine to generate with.
        most: Largest number of simultaneous requests.
    """

    def __init__(self, engine: Engine, most: int) -> None:
        self._idle: queue.Queue[Worker] = queue.Queue()
        for _ in range(most):
            self._idle.put(engine.worker())
        self._count = itertools.count()
        self.calls = 0

    def submit(self, job: GenerationJob) -> None:
        """Start a request."""
        threading.Thread(target=self._run, args=(job,), name="instance", daemon=True).start()

    def close(self) -> None:
        """Do nothing: threads end with their requests."""

    def _run(self, job: GenerationJob) -> None:
        worker = self._idle.get()
        try:
            worker.generate([job.prompt], job.wanted, lambda tokens: self._add_token(job, tokens))
        except Exception as error:
            job.fail(f"{type(error).__name__}: {error}")
        finally:
            self._idle.put(worker)

    def _add_token(self, job: GenerationJob, tokens: Ids) -> None:
        if job.received:
            self.calls = next(self._count) + 1  # incremented by several threads
        job.add(int(tokens[0]))
