"""A Triton request as a service sees it, answered exactly once."""

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
    """An accepted request; implements `tidal.requests.StreamedRequest`, of which `part` is for decoupled models only.

    The first answer wins. One that is dropped without an answer hands its sender to `orphaned` as it goes: an object
    may go at any point of any thread, also inside a lock, so it must not send by itself.

    Args:
        key: tells requests of one model apart.
        sender: Triton's response sender.
        request_id: the client's id.
        inputs: arrays by input name.
        rows: size of the batch axis, or None when the model has none and the request is one query.
        options: checked options.
        coded: whether errors are to say their code, see `tidal.triton.coded_errors`.
        arrival: `time.monotonic()` at which it was accepted.
        wanted: outputs to give.
        types: numpy types of the outputs that the config declares; `object` for BYTES, as arrays of `bytes`.
        answering: called once, before the answer goes out, with the number of rows.
        settled: called once, after the answer went out, with the key, its outcome code, its latency in seconds and
            whether it came after its deadline or not at all, and its record.
        orphaned: called with the key, sender, rows, arrival and record of a request that was dropped.
        record: for the request log; None when there is no log.
    """

    __slots__ = (
        "__weakref__",
        "_answering",
        "_asking",
        "_batched",
        "_coded",
        "_once",
        "_orphaned",
        "_sender",
        "_settled",
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
        settled: Callable[[int, str, float, bool, RequestRecord | None], None],
        orphaned: Callable[[int, Any, int, float, RequestRecord | None], None],
        record: RequestRecord | None,
    ) -> None:
        self.key = key
        self._sender = sender
        self._answering = answering
        self._settled = settled
        self._orphaned = orphaned
        self._once = threading.Lock()
        self._asking = threading.Lock()
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
        """Whether an answer has gone out or is going out."""
        return self._once.locked()

    def wants(self, output: str) -> bool:
        """Whether the client asked for this output."""
        return output in self.wanted

    def cancelled(self) -> bool:
        """Whether the client has withdrawn the request; a call to the server process that takes about 30 µs."""
        with self._asking:
            return not self.answered and bool(self._sender.is_cancelled())

    def progressed(self, now: float) -> None:
        """See `StreamedRequest.progressed`."""
        self.progress = now

    def part(self, outputs: Mapping[str, Array]) -> None:
        """See `StreamedRequest.part`; takes as long as `reply`."""
        failure: TidalError
        with self._asking:  # a part must not meet the answer on its way
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
        """Answer with arrays by output name; those that the client did not ask for are left out.

        Takes about 0.1 ms of this process's time and waits up to 0.3 ms for the server's; more threads do not get more
        answers out (about 2,400 a second on two busy cores).
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
                self._settle("OK")

    def fail(self, error: TidalError) -> None:
        """Answer with an error."""
        if self._first():
            self._send_error(error)

    def _first(self) -> bool:
        """Whether this is the first answer, which is then on its way."""
        first = self._once.acquire(blocking=False)
        if first:
            with self._asking:
                pass  # the server dies of a question about a request that it has an answer to, so let one end first
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
            # The server has dropped the request: nobody is left to tell.
            self._settle(Cancelled.code)
        else:
            self._settle(error.code)

    def _settle(self, code: str) -> None:
        now = time.monotonic()
        missed = self.deadline is not None and (code == Unavailable.code or now > self.deadline)
        self._settled(self.key, code, now - self.arrival, missed, self.record)

    def __del__(self) -> None:
        once = getattr(self, "_once", None)
        if once is not None and once.acquire(blocking=False):
            self._orphaned(self.key, self._sender, self.rows, self.arrival, self.record)
