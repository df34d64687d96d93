"""Execution of the batches that a policy formed: engines are started or run, and results go to the requests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from tidal.arlo.jobs import AnswerBuilder, ArloRequest, ArloRow
from tidal.arlo.manifest import ArloManifest
from tidal.arlo.metrics import ArloMetrics, BatchRun
from tidal.arlo.model import padded_length
from tidal.arlo.policies import ArloBatch
from tidal.arlo.runner import AsyncBatchRunner, BatchRunner
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.engines.base import StartedRun
from tidal.requests import Array
from tidal.service import ModelUnavailable
from tidal.serving.endings import failure
from tidal.tracing.current import spans_within


class Outcome(NamedTuple):
    """Outcome of a batch.

    Attributes:
        finished: Requests that it completed.
        took: Its duration in seconds; None unless all its queries ran.
    """

    finished: list[ArloRequest]
    took: float | None


NOTHING_RAN = Outcome([], None)


@dataclass(slots=True)
class StartedBatch:
    """A batch that was taken from the queue.

    Attributes:
        batch: The batch.
        rows: Those of its queries that are still wanted.
        now: Time of the decision to start it, by `time.monotonic()`, in seconds.
        run: Its run on threads of the engine; None if the thread that waits for it has to run it.
        error: Why its engine did not start; None if it did.
    """

    batch: ArloBatch
    rows: list[ArloRow]
    now: float
    run: StartedRun | None = None
    error: Exception | None = None

    @property
    def arguments(self) -> tuple[int, int, list[TokenRow], float | None]:
        """Arguments of `BatchRunner.run`: lane, runtime, tokens, and the earliest deadline."""
        deadline = min((row.deadline for row in self.rows if row.deadline is not None), default=None)
        return self.batch.lane, self.batch.runtime, [row.tokens for row in self.rows], deadline


class BatchExecution:
    """Runs batches; any thread may call it, one at a time per lane, or as many as an instance is given.

    Args:
        manifest: Manifest of the version being served.
        runner: Runs the batches.
        answers: Turns the outputs of engines into results of rows.
        metrics: Metrics of the model.
    """

    def __init__(
        self, manifest: ArloManifest, runner: BatchRunner, answers: AnswerBuilder, metrics: ArloMetrics
    ) -> None:
        self._manifest = manifest
        self._runner = runner
        self._starter = runner if isinstance(runner, AsyncBatchRunner) else None
        self._answers = answers
        self._metrics = metrics

    @property
    def starts(self) -> bool:
        """Whether engines may run without a thread of their caller."""
        return self._starter is not None

    def take(self, batch: ArloBatch, now: float) -> StartedBatch:
        """Return a batch for the thread that runs it; its cancelled queries are failed.

        Args:
            batch: Batch of the policy.
            now: Time of the decision to start it, by `time.monotonic()`, in seconds.
        """
        rows = [row for row in cast(Sequence[ArloRow], batch.queries) if row.parent.wanted(now)]
        return StartedBatch(batch, rows, now)

    def start(self, batch: ArloBatch, now: float) -> StartedBatch:
        """Start the engine of a batch if it can run without a thread; a failure is part of the outcome. See `take`."""
        started = self.take(batch, now)
        if self._starter is not None and started.rows:
            try:
                with spans_within(started.rows[0].parent.request.record):
                    started.run = self._starter.start(*started.arguments)
            except Exception as error:
                started.error = error
        return started

    def outcome(self, started: StartedBatch, wait_s: float | None = None) -> Outcome | None:
        """Wait for a batch and record its results; the queries of one that failed are failed.

        Args:
            started: The batch; it runs in this thread if its engine has not been started and there is no limit.
            wait_s: Seconds to wait for at most; None to wait until it has ended.

        Returns:
            The outcome; None if the batch has not ended.

        Raises:
            ModelUnavailable: The lane cannot run anything now; the queries have to be requeued.
        """
        if not started.rows:
            return NOTHING_RAN
        try:
            outputs = self._outputs(started, wait_s)
        except ModelUnavailable:
            raise
        except Exception as error:
            answer = failure(error, "the engine failed")
            for row in started.rows:
                row.parent.fail(answer)
            return NOTHING_RAN
        return None if outputs is None else self._record(started, outputs)

    def _outputs(self, started: StartedBatch, wait_s: float | None) -> dict[str, Array] | None:
        """Return the outputs of a batch, None if it has not ended within `wait_s` seconds; raise its failure."""
        if started.error is not None:
            raise started.error
        if started.run is not None:
            return started.run.wait(wait_s)
        if wait_s is not None:
            return None
        # Where another model runs them, its spans continue those of the first request.
        with spans_within(started.rows[0].parent.request.record):
            return self._runner.run(*started.arguments)

    def _record(self, started: StartedBatch, outputs: dict[str, Array]) -> Outcome:
        batch, rows = started.batch, started.rows
        now = started.now if batch.began is None else batch.began
        took = time.monotonic() - now
        runtime = self._manifest.runtimes[batch.runtime]
        lengths = [row.length for row in rows]
        padded = padded_length(self._manifest, batch.runtime, max(lengths))
        self._metrics.ran.add(BatchRun(runtime.max_length, lengths, padded, [now - row.arrival for row in rows], took))
        finished = []
        for row, result in zip(rows, self._answers.results(outputs, lengths, runtime.max_length), strict=True):
            if row.parent.request.record is not None:
                row.parent.request.record.ran(now, now + took, len(rows), max_length=runtime.max_length)
            if row.parent.finish(row.index, result):
                finished.append(row.parent)
        return Outcome(finished, took if len(rows) == len(batch.queries) else None)
