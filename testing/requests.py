"""A request without a server: a `tidal.requests.StreamedRequest` that keeps its answer, and contexts of services."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tidal.access_log.record import RequestRecord
from tidal.errors import TidalError
from tidal.metrics import Metrics
from tidal.options import RequestOptions
from tidal.requests import Array
from tidal.service import ModelCall, ServiceContext

_ANSWER_TIMEOUT_S = 20.0


class FakeRequest:
    """A request that keeps its answer; tests are its client and the boundary.

    Args:
        inputs: Arrays by input name.
        rows: Number of rows.
        wanted: Names of the requested outputs.
        request_id: Id of the request.
        latency_ms: Deadline in milliseconds after now; None for none.
        options: Other request options.

    Attributes:
        outputs: Outputs that it was answered with; None before, and for an error.
        error: Error that it was answered with.
        answers: Number of answers that it was given, which has to become 1.
        parts: Outputs that were sent ahead of the answer.
        progress: Times passed to `progressed`.
        withdrawn: Set it to let the client cancel the request.
        cancel_seen: Whether the service has learnt that the client cancelled.
    """

    def __init__(
        self,
        inputs: Mapping[str, Array],
        *,
        rows: int = 1,
        wanted: frozenset[str] = frozenset(),
        request_id: str = "",
        latency_ms: float | None = None,
        **options: Any,
    ) -> None:
        self.record: RequestRecord | None = None
        self.request_id = request_id
        self.rows = rows
        self.inputs = inputs
        self.options = RequestOptions(latency_ms=latency_ms, **options)
        self.wanted = wanted
        self.arrival = time.monotonic()
        self.deadline = None if latency_ms is None else self.arrival + latency_ms / 1e3
        self.outputs: Mapping[str, Array] | None = None
        self.error: TidalError | None = None
        self.answers = 0
        self.parts: list[Mapping[str, Array]] = []
        self.progress: list[float] = []
        self.withdrawn = False
        self.cancel_seen = False
        self._done = threading.Event()

    @property
    def answered(self) -> bool:
        return self._done.is_set()

    def wants(self, output: str) -> bool:
        return output in self.wanted

    def cancelled(self) -> bool:
        self.cancel_seen = self.withdrawn
        return self.withdrawn

    def part(self, outputs: Mapping[str, Array]) -> None:
        assert self.wanted.issuperset(outputs)
        if not self.answered:
            self.parts.append(outputs)

    def progressed(self, now: float) -> None:
        self.progress.append(now)

    def reply(self, outputs: Mapping[str, Array], *, partial: bool = False) -> None:
        assert partial or outputs.keys() >= self.wanted
        self.outputs = outputs
        self._finish()

    def fail(self, error: TidalError) -> None:
        if not self.answered:
            self.error = error
            self._finish()

    def _finish(self) -> None:
        self.answers += 1
        self._done.set()

    def wait(self) -> Mapping[str, Array]:
        """Wait for the answer and return its outputs; raises its error."""
        assert self._done.wait(_ANSWER_TIMEOUT_S), "no answer"
        if self.error is not None:
            raise self.error
        assert self.outputs is not None
        return self.outputs

    def one(self, name: str) -> Any:
        """Return an output of the only row."""
        values = self.wait()[name]
        assert len(values) == 1
        return values[0].tolist() if values[0].shape != (1,) else values[0, 0]


class TextRequest(FakeRequest):
    """A `FakeRequest` with one text per row, and a second one where `pairs` are given.

    Args:
        texts: Text of each row.
        pairs: Second text of each row.
        inputs: Arrays to send instead of `texts`.
        named: Other arguments of `FakeRequest`.
    """

    def __init__(
        self,
        *texts: str,
        pairs: Sequence[str] | None = None,
        inputs: Mapping[str, Array] | None = None,
        **named: Any,
    ) -> None:
        sent = dict(inputs or {"text_input": column(texts)})
        if pairs is not None:
            sent["text_pair"] = column(pairs)
        super().__init__(sent, rows=len(texts), **named)


def column(texts: Sequence[str | bytes]) -> Array:
    """Texts as a BYTES input, of shape [rows, 1]."""
    array = np.empty((len(texts), 1), object)
    for row, text in enumerate(texts):
        array[row, 0] = text.encode() if isinstance(text, str) else text
    return array


def no_models(*_: object, **__: object) -> dict[str, Array]:
    """A `ModelCall` of a server without other models."""
    raise AssertionError("another model was called")


def make_context(
    folder: Path,
    metrics: Metrics | None = None,
    *,
    model: str = "m",
    version: int = 1,
    outputs: frozenset[str] = frozenset(),
    call_model: ModelCall = no_models,
    failures: list[BaseException] | None = None,
    grouped: bool = True,
) -> ServiceContext:
    """A context to start a service with.

    Args:
        folder: Folder of the model.
        metrics: Metrics of the model; None: new ones.
        model: Name of the model.
        version: Version of the model.
        outputs: Outputs that config.pbtxt declares.
        call_model: Calls other models.
        failures: List that gets the exceptions which end a thread of the service; None: such an exception is raised.
        grouped: Whether requests that arrive during a submission are passed on together.
    """

    def failed(error: BaseException) -> None:
        if failures is None:
            raise AssertionError("a thread of the service failed") from error
        failures.append(error)

    version_dir, log = folder / str(version), logging.getLogger("test")
    metrics = metrics or Metrics("test")
    return ServiceContext(model, version, folder, version_dir, outputs, metrics, log, call_model, failed, grouped)
