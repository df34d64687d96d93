"""A Triton request with exactly one answer, as services see it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from tidal.access_log.record import RequestRecord
from tidal.errors import Cancelled, Internal, TidalError, Unavailable
from tidal.options import RequestOptions
from tidal.requests import Array
from tidal.triton.errors import error_response

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonRequest:
    """An accepted request; implements `tidal.requests.StreamedRequest`, whose `part` is for decoupled models only.

    Only the first answer is sent. A request that is deleted without an answer passes its sender to `orphaned`: the
    deletion may happen anywhere in any thread, also while it holds a lock, so nothing can be sent there.

    Args:
        key: Number of the request, unique in its model.
        sender: Triton's response sender.
        request_id: Id that the client gave to the request.
        inputs: Arrays by input name.
        rows: Size of the batch axis; None if the model has none and the request is one query.
        options: Checked options.
        coded: Whether error messages have to contain the code, see `tidal.triton.coded_errors`.
        arrival: Time of acceptance, by `time.monotonic()`, in seconds.
        wanted: Names of the requested outputs.
        types: NumPy types of the outputs that config.pbtxt declares; `object` for BYTES, as arrays of `bytes`.
        answering: Called once, before the answer is sent, with the number of rows.
        finished: Called once, after the answer was sent, with the key, the outcome's code, the latency in seconds,
            whether the deadline was missed, and the record.
        orphaned: Called with key, sender, rows, arrival and record of a request that was dropped.
        record: Record of the request for the request log; None if there is no log.
    """

    __slots__ = (
        "__weakref__",
        "_answering",
        "_batched",
        "_cancel_lock",
        "_coded",
        "_finished",
        "_once",
        "_orphaned",
        "_sender",
        "_types",
        "arrival",
        "deadline",
        "inputs",
        "key",
        "options",
        "progress",
        "record",
        "request_id",
        "rows",
        "wanted",
    )

    def __init__(
        self,
        key: int,
        sender: Any,
        request_id: str,
        inputs: Mapping[str, Array],
        rows: int | None,
        options: RequestOptions,
        coded: bool,
        arrival: float,
        wanted: frozenset[str],
        types: Mapping[str, np.dtype[Any]],
        answering: Callable[[int], None],
        finished: Callable[[int, str, float, bool, RequestRecord | None], None],
        orphaned: Callable[[int, Any, int, float, RequestRecord | None], None],
        record: RequestRecord | None,
    ) -> None:
        self.key = key
        self._sender = sender
        self._answering = answering
        self._finished = finished
        self._orphaned = orphaned
        self._once = threading.Lock()
        self._cancel_lock = threading.Lock()
        self.request_id = request_id
        self.inputs = inputs
        self.rows = 1 if rows is None else rows
        self._batched = rows is not None
        self.options = options
        self._coded = coded
        self.arrival = arrival
        self.progress = arrival
        self.deadline = None if options.latency_ms is None else arrival + options.latency_ms / 1e3
        self.wanted = wanted
        self._types = types
        self.record = record

    @property
    def answered(self) -> bool:
        """Whether an answer has been sent or is being sent."""
        return self._once.locked()

    def wants(self, output: str) -> bool:
        """Whether the client requested this output."""
        return output in self.wanted

    def cancelled(self) -> bool:
        """Whether the client has cancelled the request; a call to the server process of about 30 µs."""
        with self._cancel_lock:
            return not self.answered and bool(self._sender.is_cancelled())

    def progressed(self, now: float) -> None:
        """See `StreamedRequest.progressed`."""
        self.progress = now

    def part(self, outputs: Mapping[str, Array]) -> None:
        """See `StreamedRequest.part`; takes as long as `reply`."""
        failure: TidalError
        with self._cancel_lock:  # a part must not overlap with the answer
            if self.answered:
                return
            try:
                self._sender.send(self._response(outputs, self.wanted.intersection(outputs)))
                return
            except TidalError as error:
                failure = error
            except Exception as error:
                failure = Internal(f"a part of the answer cannot be sent: {error}")
        self.fail(failure)

    def reply(self, outputs: Mapping[str, Array]) -> None:
        """Answer with arrays by output name; outputs that were not requested are left out.

        Takes about 0.1 ms in this process and up to 0.3 ms of waiting for the server; more threads do not send more
        answers (about 2,400 per second on two busy cores).
        """
        if not self._first():
            return
        try:
            response = self._response(outputs, self.wanted)
        except TidalError as error:
            self._send_error(error)
        else:
            try:
                self._sender.send(response, flags=_FINAL)
            except Exception as error:
                self._send_error(Internal(f"the answer cannot be sent: {error}"))
            else:
                self._report("OK")

    def fail(self, error: TidalError) -> None:
        """Answer with an error."""
        if self._first():
            self._send_error(error)

    def _first(self) -> bool:
        """Whether this is the first answer, which the caller then has to send."""
        first = self._once.acquire(blocking=False)
        if first:
            with self._cancel_lock:
                pass  # `is_cancelled` on an answered request crashes the server: wait for a call that runs
            self._answering(self.rows)
        return first

    def _response(self, outputs: Mapping[str, Array], wanted: frozenset[str]) -> Any:
        tensors = []
        for name in wanted:
            if name not in outputs:
                raise Internal(f"the output '{name}' is declared in config.pbtxt, but the model does not give it")
            array = outputs[name]
            try:
                if self._batched and len(array) != self.rows:
                    raise Internal(f"the output '{name}' has {len(array)} rows for a request of {self.rows}")
                tensors.append(pb_utils.Tensor(name, np.ascontiguousarray(array)))
                if array.dtype != self._types[name]:
                    raise Internal(
                        f"the output '{name}' is {array.dtype}, but config.pbtxt declares {self._types[name]}"
                    )
            except TidalError:
                raise
            except Exception as error:
                raise Internal(f"the output '{name}' cannot be sent: {error}") from None
        return pb_utils.InferenceResponse(output_tensors=tensors)

    def _send_error(self, error: TidalError) -> None:
        try:
            self._sender.send(error_response(error, coded=self._coded), flags=_FINAL)
        except Exception:
            # The server has dropped the request: no client waits for it.
            self._report(Cancelled.code)
        else:
            self._report(error.code)

    def _report(self, code: str) -> None:
        now = time.monotonic()
        missed = self.deadline is not None and (code == Unavailable.code or now > self.deadline)
        self._finished(self.key, code, now - self.arrival, missed, self.record)

    def __del__(self) -> None:
        once = getattr(self, "_once", None)
        if once is not None and once.acquire(blocking=False):
            self._orphaned(self.key, self._sender, self.rows, self.arrival, self.record)
