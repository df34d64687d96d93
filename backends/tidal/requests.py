"""The request as a system's service sees it: data, options, and exactly one answer. Nothing of Triton in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy.typing as npt

from tidal.access_log.record import RequestRecord
from tidal.errors import TidalError
from tidal.options import RequestOptions

Array = npt.NDArray[Any]


class PendingRequest(Protocol):
    """One accepted request. Whoever holds it answers it once, by `reply` or by `fail`, from any thread.

    A second answer is ignored, and a request that is dropped unanswered is failed by the boundary, so a client
    always gets exactly one final response.
    """

    @property
    def request_id(self) -> str:
        """The client's id for it, empty when the client gave none."""

    @property
    def inputs(self) -> Mapping[str, Array]:
        """Arrays by input name; optional inputs that were not sent are absent. BYTES are arrays of `bytes`."""

    @property
    def rows(self) -> int:
        """Size of the batch axis: separate queries that share the request's options."""

    @property
    def options(self) -> RequestOptions:
        """The request's checked options."""

    @property
    def arrival(self) -> float:
        """`time.monotonic()` seconds at which the request was accepted."""

    @property
    def deadline(self) -> float | None:
        """Latest `time.monotonic()` seconds for an answer (`arrival` + `latency_ms`), or None."""

    @property
    def wanted(self) -> frozenset[str]:
        """Names of the outputs that the client asked for: all that the model declares when it named none."""

    @property
    def record(self) -> RequestRecord | None:
        """Where to note facts for the request log; None when there is no log."""

    @property
    def answered(self) -> bool:
        """Whether it has been answered, by whomever: there is no use in working on it any more."""

    def wants(self, output: str) -> bool:
        """Whether the client asked for this output."""

    def cancelled(self) -> bool:
        """Whether the client has withdrawn the request (known for gRPC). Costs a call to the server process."""

    def reply(self, outputs: Mapping[str, Array]) -> None:
        """Answer with arrays by output name; those that the client did not ask for are left out."""

    def fail(self, error: TidalError) -> None:
        """Answer with an error."""


class StreamedRequest(PendingRequest, Protocol):
    """A request to a model that may send more than one response; `reply` and `fail` send the last."""

    def part(self, outputs: Mapping[str, Array]) -> None:
        """Send arrays by output name ahead of the answer; those that the client did not ask for are left out.

        Ignored once the request is answered.
        """

    def progressed(self, now: float) -> None:
        """The request was worked on at `time.monotonic()` seconds `now`: the time for its answer begins anew."""
