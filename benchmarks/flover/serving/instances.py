"""Concurrent instances: every request has a thread of its own, and they share weights (the paper's baseline)."""

from __future__ import annotations

import itertools
import queue
import threading

from benchmarks.flover.serving.engines import Engine, Worker
from benchmarks.flover.serving.outbox import GenerationJob, Ids


class Instances:
    """Generates for each request by itself, at most `most` of them at a time.

    Attributes:
        calls: passes so far, without those that read a prompt.
    """

    def __init__(self, engine: Engine, most: int) -> None:
        self._idle: queue.Queue[Worker] = queue.Queue()
        for _ in range(most):
            self._idle.put(engine.worker())
        self._count = itertools.count()
        self.calls = 0

    def submit(self, job: GenerationJob) -> None:
        """Begin with a request."""
        threading.Thread(target=self._run, args=(job,), name="instance", daemon=True).start()

    def close(self) -> None:
        """Nothing has to be ended."""

    def _run(self, job: GenerationJob) -> None:
        worker = self._idle.get()
        try:
            worker.generate([job.prompt], job.wanted, lambda tokens: self._took(job, tokens))
        except Exception as error:
            job.fail(f"{type(error).__name__}: {error}")
        finally:
            self._idle.put(worker)

    def _took(self, job: GenerationJob, tokens: Ids) -> None:
        if job.taken:
            self.calls = next(self._count) + 1  # of several threads
        job.take(int(tokens[0]))
