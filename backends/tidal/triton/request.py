"""A Triton request with exactly one answer, as services see it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from tidal.access_log.record import RequestRecord
from tidal.errors import Cancelled, Internal, TidalError, Unavailable
from tidal.options import RequestOptions
from tidal.requests import Array
from tidal.triton.answer_list import AnswerSlot
from tidal.triton.errors import error_response
from tidal.triton.reused_tensors import ReusedTensors

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
#: Callback with key, slot, rows, arrival and record of a request that was dropped.
Orphaned = Callable[[int, AnswerSlot, int, float, RequestRecord | None], None]


@dataclass(frozen=True, slots=True)
class RequestHooks:
    """What the requests of a model have in common.

    Attributes:
        types: NumPy types of the outputs that config.pbtxt declares; `object` for BYTES, as arrays of `bytes`.
        answering: Called before an answer is sent on its own, with the number of the request's rows.
        finished: Called after an answer was sent on its own, with the key, the outcome's code, the latency in seconds,
            whether the deadline was missed, and the record.
        orphaned: Called with key, slot, rows, arrival and record of a request that was dropped.
        tensors: Output tensors that answers share.
    """

    types: Mapping[str, np.dtype[Any]]
    answering: Callable[[int], None]
    finished: Callable[[int, str, float, bool, RequestRecord | None], None]
    orphaned: Orphaned
    tensors: ReusedTensors


class TritonRequest:
    """An accepted request; implements `tidal.requests.StreamedRequest`, whose `part` is for decoupled models only.

    Only the first answer is sent. A request that is deleted without an answer passes its slot to `orphaned`: the
    deletion may happen anywhere in any thread, also while it holds a lock, so nothing can be sent there.

    Args:
        key: Number of the request, unique in its model.
        slot: Place of the answer.
        request_id: Id that the client gave to the request.
        inputs: Arrays by input name.
        rows: Size of the batch axis; None if the model has none and the request is one query.
        options: Checked options.
        coded: Whether error messages have to contain the code, see `tidal.serving.coded_errors`.
        arrival: Time of acceptance, by `time.monotonic()`, in seconds.
        wanted: Names of the requested outputs.
        hooks: Callbacks and output types of the model.
        record: Record of the request; None if there is neither a request log nor tracing.
    """

    __slots__ = (
        "__weakref__",
        "_batched",
        "_cancel_lock",
        "_coded",
        "_hooks",
        "_once",
        "_slot",
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
        slot: AnswerSlot,
        request_id: str,
        inputs: Mapping[str, Array],
        rows: int | None,
        options: RequestOptions,
        coded: bool,
        arrival: float,
        wanted: frozenset[str],
        hooks: RequestHooks,
        record: RequestRecord | None,
    ) -> None:
        self.key = key
        self._slot = slot
        self._hooks = hooks
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
            return not self.answered and self._slot.is_cancelled()

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
                self._slot.part(self._response(outputs, self.wanted.intersection(outputs)))
                return
            except TidalError as error:
                failure = error
            except Exception as error:
                failure = Internal(f"a part of the answer cannot be sent: {error}")
        self.fail(failure)

    def reply(self, outputs: Mapping[str, Array], *, partial: bool = False) -> None:
        """Answer with arrays by output name; outputs that were not requested are left out.

        An answer that has to be sent takes about 0.1 ms in this process and up to 0.3 ms of waiting for the server;
        one that `execute` returns in its list takes about half, and waits for nothing.
        """
        if not self._first():
            return
        try:
            wanted = self.wanted.intersection(outputs) if partial else self.wanted
            if self._slot.listed:
                response = self._response(outputs, wanted, shared=True)
                if self._slot.put(response, (self, "OK")):
                    return
            response = self._response(outputs, wanted)
        except TidalError as error:
            self._end(self._error(error), error.code)
        else:
            self._end(response, "OK")

    def fail(self, error: TidalError) -> None:
        """Answer with an error."""
        if self._first():
            self._end(self._error(error), error.code)

    def missed(self, code: str, now: float) -> bool:
        """Whether the request had a deadline and was not answered by then.

        Args:
            code: `OK` or the code of the error that it was answered with.
            now: Time of the answer, by `time.monotonic()`, in seconds.
        """
        return self.deadline is not None and (code == Unavailable.code or now > self.deadline)

    def _first(self) -> bool:
        """Whether this is the first answer, which the caller then has to send."""
        first = self._once.acquire(blocking=False)
        if first:
            with self._cancel_lock:
                pass  # `is_cancelled` on an answered request crashes the server: wait for a call that runs
        return first

    def _response(self, outputs: Mapping[str, Array], wanted: frozenset[str], *, shared: bool = False) -> Any:
        """Return a response; only an answer of the list of a call may share tensors with others."""
        types, rows = self._hooks.types, self.rows if self._batched else None
        try:
            found = self._hooks.tensors.all(outputs, wanted, types, rows, shared=shared)
            if found is not None:
                return pb_utils.InferenceResponse(output_tensors=found)
        except Exception:  # the loop below says which output is wrong; contextlib.suppress takes 0.7 µs
            pass
        tensor = self._hooks.tensors.get if shared else pb_utils.Tensor
        tensors = []
        for name in wanted:
            array = outputs.get(name)
            if array is None:
                raise Internal(f"the output '{name}' is declared in config.pbtxt, but the model does not give it")
            try:
                if self._batched and len(array) != self.rows:
                    raise Internal(f"the output '{name}' has {len(array)} rows for a request of {self.rows}")
                contiguous = array if array.flags.c_contiguous else np.ascontiguousarray(array)
                tensors.append(tensor(name, contiguous))
                if array.dtype != types[name]:
                    raise Internal(f"the output '{name}' is {array.dtype}, but config.pbtxt declares {types[name]}")
            except TidalError:
                raise
            except Exception as error:
                raise Internal(f"the output '{name}' cannot be sent: {error}") from None
        return pb_utils.InferenceResponse(output_tensors=tensors)

    def _error(self, error: TidalError) -> Any:
        return error_response(error, coded=self._coded)

    def _end(self, response: Any, code: str) -> None:
        """Answer with a response; one in the list of the call is recorded when the list is returned."""
        if self._slot.put(response, (self, code)):
            return
        self._hooks.answering(self.rows)
        code = self._send(response, code)
        now = time.monotonic()
        self._hooks.finished(self.key, code, now - self.arrival, self.missed(code, now), self.record)

    def _send(self, response: Any, code: str) -> str:
        """Send a response, or an error if that fails; return the code of what was sent."""
        try:
            self._slot.send(response, _FINAL)
            return code
        except Exception as error:
            failure = Internal(f"the answer cannot be sent: {error}")
        if code == "OK":
            with contextlib.suppress(Exception):
                self._slot.send(self._error(failure), _FINAL)
                return failure.code
        # The server has dropped the request: no client waits for it.
        return Cancelled.code

    def __del__(self) -> None:
        once = getattr(self, "_once", None)
        if once is not None and once.acquire(blocking=False):
            self._hooks.orphaned(self.key, self._slot, self.rows, self.arrival, self.record)
