"""What a run of load gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidal_client.load.arrivals import Times
from tidal_client.load.mix import RequestVariant


@dataclass(frozen=True, slots=True, eq=False)
class Generations:
    """What came of each generation, [requests]."""

    #: When its first tokens were here, seconds from the start of the run; NaN where none came.
    first: Times
    #: Tokens that came.
    tokens: npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class LoadResult:
    """What became of each request. Times are seconds from the start of the run, [requests]."""

    #: When each should have been sent: the latency that a user sees counts from here.
    scheduled: Times
    sent: Times
    #: When its answer, or its error, was here.
    done: Times
    #: Index into `codes`; 0 is an answer.
    status: npt.NDArray[np.intp]
    #: `OK`, then the codes of the errors that came.
    codes: tuple[str, ...]
    #: First sentence that came with each error code.
    messages: Mapping[str, str]
    #: Index into `mix`.
    variants: npt.NDArray[np.intp]
    mix: tuple[RequestVariant, ...]
    #: Processor seconds of this process meanwhile, all threads.
    cpu_s: float
    #: Seconds since the epoch at the start of the run.
    started: float
    #: How often each was sent again, [requests].
    resent: npt.NDArray[np.intp]
    #: Of generations: what came of each; None for other requests.
    generated: Generations | None = None

    @property
    def answered(self) -> npt.NDArray[np.bool_]:
        """Which requests were answered without an error."""
        return np.asarray(self.status == 0)

    @property
    def latency(self) -> Times:
        """Seconds from the scheduled time to the end."""
        return self.done - self.scheduled

    @property
    def send_lag(self) -> Times:
        """Seconds by which the generator was late."""
        return self.sent - self.scheduled

    @property
    def duration(self) -> float:
        """Seconds until the last request ended."""
        return float(self.done.max())
