"""Check a raw Triton request: accept it, or refuse it with an error."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import triton_python_backend_utils as pb_utils

from tidal.access_log.record import RequestRecord
from tidal.errors import InvalidArgument, TidalError, Unavailable
from tidal.options import CODED_ERRORS, FROM_MODEL, RequestOptions, parse_options, split_traceparent
from tidal.requests import Array
from tidal.serving.endings import failure
from tidal.triton.answer_list import AnswerList, AnswerSlot
from tidal.triton.errors import error_response
from tidal.triton.outstanding import Outstanding
from tidal.triton.raw_parameters import read_parameters, wants_coded_errors
from tidal.triton.request import RequestHooks, TritonRequest
from tidal.triton.trace_context import caller, parameter_traceparent

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
# Numbers of combinations that are cached, and the longest text of parameters among them.
_MAX_CACHED = 256
_MAX_CACHED_CHARS = 1024


class _Options(NamedTuple):
    """Parsed parameters of a request.

    Attributes:
        options: Checked options.
        coded: Whether error messages have to contain the code, see `tidal.serving.coded_errors`.
        from_model: Whether a model of the same server sent the request.
    """

    options: RequestOptions
    coded: bool
    from_model: bool


class Acceptance:
    """Checks the requests of a call, each on its own, so that an invalid one is answered alone.

    Args:
        hooks: Callbacks of the requests, and the NumPy types of the outputs that config.pbtxt declares.
        batched: Whether the first axis of the inputs is the batch axis.
        max_queue_size: Maximum number of open queries; a request that would exceed it is refused.
        outstanding: Collection of the accepted requests.
    """

    def __init__(
        self,
        hooks: RequestHooks,
        *,
        batched: bool,
        max_queue_size: int,
        outstanding: Outstanding,
    ) -> None:
        self._hooks = hooks
        self._outputs = frozenset(hooks.types)
        self._wanted: dict[tuple[str, ...], frozenset[str]] = {}
        self._options: dict[str, _Options] = {}
        self._batched = batched
        self._max_queue_size = max_queue_size
        self._outstanding = outstanding
        self._keys = itertools.count()

    def accept(self, requests: Sequence[Any], answers: AnswerList | None, arrival: float) -> list[TritonRequest]:
        """Check the requests of a call; refuse invalid ones, and return the others.

        Args:
            requests: Triton's requests.
            answers: List of their answers; None for a decoupled model.
            arrival: Time of acceptance, by `time.monotonic()`, in seconds.
        """
        accepted: list[TritonRequest] = []
        waiting = self._outstanding.queries
        for index, raw in enumerate(requests):
            slot = AnswerSlot(raw.get_response_sender(), answers, index)
            try:
                request = self._accept(raw, slot, arrival, waiting)
            except Exception as error:
                self._refuse(raw, slot, failure(error, "the request could not be read"))
            else:
                waiting += request.rows
                accepted.append(request)
        if accepted:
            self._outstanding.add(accepted)
        return accepted

    def _accept(self, raw: Any, slot: AnswerSlot, arrival: float, waiting: int) -> TritonRequest:
        text, traceparent = split_traceparent(raw.parameters() or "{}")
        known = self._options.get(text) or self._parse(raw, text)
        inputs: dict[str, Array] = {tensor.name(): tensor.as_numpy() for tensor in raw.inputs()}
        rows = self._rows(inputs)
        queries = rows or 1
        if queries > self._max_queue_size:
            raise InvalidArgument(
                f"the request has {queries} rows; accepted are up to max_queue_size, {self._max_queue_size}"
            )
        if waiting + queries > self._max_queue_size:
            raise Unavailable(
                f"the model's queue is full: {waiting} queries wait or run, and "
                f"max_queue_size is {self._max_queue_size}"
            )
        request_id = raw.request_id()
        record: RequestRecord | None = None
        if self._outstanding.recorded:
            task = known.options.task
            record = RequestRecord(request_id, arrival, rows=queries, task=task, from_model=known.from_model)
            if self._outstanding.tracing is not None:
                self._outstanding.tracing.begin(record, caller(raw, traceparent))
        return TritonRequest(
            next(self._keys),
            slot,
            request_id,
            inputs,
            rows,
            known.options,
            known.coded,
            arrival,
            self._requested(raw.requested_output_names()),
            self._hooks,
            record,
        )

    def _parse(self, raw: Any, text: str) -> _Options:
        """Check a request's parameters; cached by their text, since clients send few combinations.

        Args:
            raw: Triton's request.
            text: Its parameters without the trace context, which differs between requests.

        Raises:
            InvalidArgument: An option is not accepted.
        """
        parameters = read_parameters(raw)
        found = _Options(parse_options(parameters), CODED_ERRORS in parameters, FROM_MODEL in parameters)
        if len(self._options) < _MAX_CACHED and len(text) <= _MAX_CACHED_CHARS:
            self._options[text] = found
        return found

    def _refuse(self, raw: Any, slot: AnswerSlot, error: TidalError) -> None:
        """Answer a request that was not accepted; does nothing if its client no longer waits."""
        with contextlib.suppress(Exception):
            slot.answer(error_response(error, coded=wants_coded_errors(raw)), _FINAL)
        record: RequestRecord | None = None
        if self._outstanding.recorded:
            parameters: dict[str, Any] = {}
            with contextlib.suppress(Exception):
                parameters = read_parameters(raw)
            task = parameters.get("task")
            record = RequestRecord(
                raw.request_id(),
                time.monotonic(),
                task=task if isinstance(task, str) else None,
                from_model=FROM_MODEL in parameters,
            )
            if self._outstanding.tracing is not None:
                self._outstanding.tracing.begin(record, caller(raw, parameter_traceparent(parameters)))
        self._outstanding.refused(error.code, record)

    def _rows(self, inputs: dict[str, Array]) -> int | None:
        if not self._batched or not inputs:
            return None
        if len(inputs) == 1:
            (rows,) = map(len, inputs.values())
            return _checked(rows)
        sizes = {name: len(array) for name, array in inputs.items()}
        rows = next(iter(sizes.values()))
        if any(size != rows for size in sizes.values()):
            raise InvalidArgument(f"inputs differ in their number of rows: {sizes}; accepted is one number for all")
        return _checked(rows)

    def _requested(self, names: list[str]) -> frozenset[str]:
        """Return the requested outputs as a set; cached, since few combinations occur."""
        key = tuple(names)
        wanted = self._wanted.get(key)
        if wanted is None:
            wanted = frozenset(names) & self._outputs if names else self._outputs
            if len(self._wanted) < _MAX_CACHED:
                self._wanted[key] = wanted
        return wanted


def _checked(rows: int) -> int:
    if rows == 0:
        raise InvalidArgument("the request has no rows; accepted is at least one")
    return rows
