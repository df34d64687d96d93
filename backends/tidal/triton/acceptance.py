"""Turning a raw Triton request into an accepted one, or the reason why not."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from tidal.access_log.record import RequestRecord
from tidal.errors import InvalidArgument, TidalError, Unavailable
from tidal.options import CODED_ERRORS, FROM_MODEL, parse_options
from tidal.requests import Array
from tidal.triton.errors import error_response
from tidal.triton.outstanding import Outstanding
from tidal.triton.raw_parameters import read_parameters, wants_coded_errors
from tidal.triton.request import TritonRequest

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Acceptance:
    """Checks requests one by one, so that a bad one is answered alone.

    Args:
        outputs: numpy types of the outputs that the config declares, by name.
        batched: whether the first axis of the inputs is the batch axis.
        max_queue_size: queries that may be open; a request that would exceed it is refused.
        outstanding: where accepted requests are kept.
        orphaned: see `TritonRequest`.
    """

    def __init__(
        self,
        outputs: Mapping[str, np.dtype[Any]],
        *,
        batched: bool,
        max_queue_size: int,
        outstanding: Outstanding,
        orphaned: Callable[[int, Any, int, float, RequestRecord | None], None],
    ) -> None:
        self._types = outputs
        self._outputs = frozenset(outputs)
        self._wanted: dict[tuple[str, ...], frozenset[str]] = {}
        self._batched = batched
        self._max_queue_size = max_queue_size
        self._outstanding = outstanding
        self._orphaned = orphaned
        self._keys = itertools.count()

    def accept(self, raw: Any, sender: Any) -> TritonRequest:
        """The accepted request; takes 25 to 30 µs without options.

        Raises:
            TidalError: why it is refused; nothing has been sent.
        """
        arrival = time.monotonic()
        parameters = read_parameters(raw)
        options = parse_options(parameters)
        inputs: dict[str, Array] = {tensor.name(): tensor.as_numpy() for tensor in raw.inputs()}
        rows = self._rows(inputs)
        queries = rows or 1
        if queries > self._max_queue_size:
            raise InvalidArgument(
                f"the request has {queries} rows; accepted are up to max_queue_size, {self._max_queue_size}"
            )
        if self._outstanding.queries + queries > self._max_queue_size:
            raise Unavailable(
                f"the model's queue is full: {self._outstanding.queries} queries wait or run, and "
                f"max_queue_size is {self._max_queue_size}"
            )
        request_id = raw.request_id()
        record: RequestRecord | None = None
        if self._outstanding.access_log is not None:
            from_model = FROM_MODEL in parameters
            record = RequestRecord(request_id, arrival, rows=queries, task=options.task, from_model=from_model)
        request = TritonRequest(
            next(self._keys),
            sender,
            request_id,
            inputs,
            rows,
            options,
            CODED_ERRORS in parameters,
            arrival,
            self._requested(raw.requested_output_names()),
            self._types,
            self._outstanding.answering,
            self._outstanding.settled,
            self._orphaned,
            record,
        )
        self._outstanding.add(request)
        return request

    def refuse(self, raw: Any, sender: Any, error: TidalError) -> None:
        """Answer a request that was not accepted; harms no other when nobody waits for it any more."""
        with contextlib.suppress(Exception):
            sender.send(error_response(error, coded=wants_coded_errors(raw)), flags=_FINAL)
        record: RequestRecord | None = None
        if self._outstanding.access_log is not None:
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
        self._outstanding.refused(error.code, record)

    def _rows(self, inputs: dict[str, Array]) -> int | None:
        if not self._batched or not inputs:
            return None
        sizes = {name: len(array) for name, array in inputs.items()}
        rows = next(iter(sizes.values()))
        if any(size != rows for size in sizes.values()):
            raise InvalidArgument(f"inputs differ in their number of rows: {sizes}; accepted is one number for all")
        if rows == 0:
            raise InvalidArgument("the request has no rows; accepted is at least one")
        return rows

    def _requested(self, names: list[str]) -> frozenset[str]:
        """The names as a set; few combinations occur, so they are kept."""
        key = tuple(names)
        wanted = self._wanted.get(key)
        if wanted is None:
            wanted = frozenset(names) & self._outputs if names else self._outputs
            if len(self._wanted) < 256:
                self._wanted[key] = wanted
        return wanted
