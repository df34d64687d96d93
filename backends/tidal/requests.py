"""A request as a system's service sees it: inputs, options, and exactly one answer. Independent of Triton."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy.typing as npt

from tidal.access_log.record import RequestRecord
from tidal.errors import TidalError
from tidal.options import RequestOptions

Array = npt.NDArray[Any]


class PendingRequest(Protocol):
    """One accepted request, which the service answers once, by `reply` or `fail`, from any thread.

    A second answer is ignored, and the boundary fails a request that is dropped without an answer: a client always
    gets exactly one final response.
    """

    @property
    def request_id(self) -> str:
        """Id that the client gave to the request; empty if it gave none."""

    @property
    def inputs(self) -> Mapping[str, Array]:
        """Arrays by input name, without optional inputs that were not sent; BYTES inputs are arrays of `bytes`."""

    @property
    def rows(self) -> int:
        """Size of the batch axis: each row is a query, and all share the request's options."""

    @property
    def options(self) -> RequestOptions:
        """The request's checked options."""

    @property
    def arrival(self) -> float:
        """Time at which the request was accepted, by `time.monotonic()`, in seconds."""

    @property
    def deadline(self) -> float | None:
        """Latest time for an answer, `arrival` + `latency_ms`, by `time.monotonic()`, in seconds; None for none."""

    @property
    def wanted(self) -> frozenset[str]:
        """Names of the requested outputs: all that the model declares if the client named none."""

    @property
    def record(self) -> RequestRecord | None:
        """Record of the request; None if there is neither a request log nor tracing."""

    @property
    def answered(self) -> bool:
        """Whether the request has been answered, by the service or the boundary; further work on it is useless."""

    def wants(self, output: str) -> bool:
        """Whether the client requested this output."""

    def cancelled(self) -> bool:
        """Whether the client has cancelled the request (known for gRPC only); a call to the server process."""

    def reply(self, outputs: Mapping[str, Array], *, partial: bool = False) -> None:
        """Answer with arrays by output name; outputs that were not requested are left out.

        Args:
            outputs: Arrays by output name.
            partial: Whether requested outputs may be missing: those that do not apply to the request.
        """

    def fail(self, error: TidalError) -> None:
        """Answer with an error."""


class StreamedRequest(PendingRequest, Protocol):
    """A request to a model that may send several responses; `reply` and `fail` send the last one."""

    def part(self, outputs: Mapping[str, Array]) -> None:
        """Send arrays by output name before the answer; outputs that were not requested are left out.

        Ignored after the request has been answered.
        """

    def progressed(self, now: float) -> None:
        """Report progress at time `now` (`time.monotonic()`, seconds), which restarts `answer_timeout_s`."""
