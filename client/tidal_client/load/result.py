"""Result of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidal_client.load.arrivals import Times
from tidal_client.load.mix import RequestVariant


@dataclass(frozen=True, slots=True, eq=False)
class Generations:
    """Token times and counts of generation requests, [requests]."""

    #: Arrival of the first tokens in seconds from the start of the run; NaN: no tokens arrived.
    first: Times
    #: Number of tokens received.
    tokens: npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class LoadResult:
    """Times, status and variant of each request. Times are seconds from the start of the run, [requests]."""

    #: Scheduled send times; latency as a user observes it counts from here.
    scheduled: Times
    sent: Times
    #: Arrival of the response or the error.
    done: Times
    #: Index into `codes`; 0: answered.
    status: npt.NDArray[np.intp]
    #: `OK`, then the error codes that occurred.
    codes: tuple[str, ...]
    #: First message of each error code.
    messages: Mapping[str, str]
    #: Index into `mix`.
    variants: npt.NDArray[np.intp]
    mix: tuple[RequestVariant, ...]
    #: Processor time of this process during the run, all threads, in seconds.
    cpu_s: float
    #: Seconds since the epoch at the start of the run.
    started: float
    #: Number of retries, [requests].
    resent: npt.NDArray[np.intp]
    #: Token times of generation requests; None for other requests.
    generated: Generations | None = None

    @property
    def answered(self) -> npt.NDArray[np.bool_]:
        """Whether each request was answered, bool [requests]."""
        return np.asarray(self.status == 0)

    @property
    def latency(self) -> Times:
        """Time from the scheduled send to the end, in seconds, [requests]."""
        return self.done - self.scheduled

    @property
    def send_lag(self) -> Times:
        """Delay of each send, in seconds, [requests]."""
        return self.sent - self.scheduled

    @property
    def duration(self) -> float:
        """Time until the last request ended, in seconds."""
        return float(self.done.max())
