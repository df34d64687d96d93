"""Closed and open loops of requests over HTTP or gRPC, by the same sender for all servers.

Requests are serialised before; the sender costs 0.12 ms of processor time per request over HTTP, and does not parse
answers.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from tidal_client.errors import RequestError
from tidal_client.load.arrivals import Times
from tidal_client.load.grpc_sender import GrpcSender
from tidal_client.load.http_sender import HttpSender
from tidal_client.load.loop import Outcomes, send_all
from tidal_client.load.sender import Finish, RequestSender

_TIMEOUT_S = 60.0
#: A measurement that is lengthened takes at most this many times as long.
LONGEST = 8
OpenTo = Callable[[Finish], RequestSender]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Result of a loop, measured at the client.

    Attributes:
        per_second: Requests answered per second.
        latencies_ms: Latency of each answered request in ms; in an open loop from its scheduled time.
        failed: Number of failed requests.
        client_s: CPU seconds of this process.
        seconds: Seconds that were measured.
        error: Message of a failed request; "" if none failed.
    """

    per_second: float
    latencies_ms: npt.NDArray[np.float64]
    failed: int
    client_s: float
    seconds: float
    error: str = ""


def sender_to(location: str, *, grpc: bool = False) -> OpenTo:
    """Return what opens a sender to a server.

    Args:
        location: `host:port` of the server.
        grpc: Whether requests are gRPC messages.
    """
    return partial(GrpcSender if grpc else HttpSender, location, _TIMEOUT_S)


def closed_loop(
    open_to: OpenTo, payloads: Sequence[bytes], *, in_flight: int, seconds: float, warm_s: float = 0.0, least: int = 0
) -> LoadResult:
    """Keep a number of requests in flight; each payload is sent at most once.

    Answers within `seconds` after `warm_s` count, while the number of requests in flight stays the same. As long as
    there are too few, the measurement goes on for as long again, up to 8 times: its end does not depend on when an
    answer arrives. It ends earlier when all payloads are sent.

    Args:
        open_to: Opens the sender.
        payloads: Requests.
        in_flight: Number of requests in flight.
        seconds: Length of the measurement in seconds.
        warm_s: Seconds before it.
        least: Least number of answers, failed ones included.
    """
    ended: queue.SimpleQueue[tuple[float, int, RequestError | None]] = queue.SimpleQueue()
    sender = open_to(lambda number, error: ended.put((time.perf_counter(), number, error)))
    sent = np.zeros(len(payloads))
    latencies, errors = list[float](), list[str]()
    try:
        begin = time.perf_counter() + warm_s
        end, latest = begin + seconds, begin + LONGEST * seconds
        used = time.process_time()
        pending = following = 0
        for following in range(min(in_flight, len(payloads))):
            sent[following] = time.perf_counter()
            sender.send(following, payloads[following])
            pending += 1
        following += 1
        while pending:
            moment, number, error = ended.get(timeout=2 * _TIMEOUT_S)
            pending -= 1
            while end <= moment < latest and len(latencies) + len(errors) < least:
                end += seconds
            if begin <= moment < end:
                if error is None:
                    latencies.append(moment - sent[number])
                else:
                    errors.append(str(error))
            if moment < end:
                if following == len(payloads):
                    end = latest = moment
                    continue
                sent[following] = time.perf_counter()
                sender.send(following, payloads[following])
                following += 1
                pending += 1
        used = time.process_time() - used
    finally:
        sender.close()
    found, seconds = np.array(latencies) * 1e3, max(end - begin, 1e-9)
    return LoadResult(len(found) / seconds, found, len(errors), used, seconds, errors[0] if errors else "")


def open_loop(open_to: OpenTo, payloads: Sequence[bytes], times: Times, *, drain_s: float) -> LoadResult:
    """Send each request at its time, whether earlier ones have ended or not.

    Args:
        open_to: Opens the sender.
        payloads: Requests.
        times: Send times in seconds from the start, ascending, [requests].
        drain_s: Time to wait for answers after the last request was sent, in seconds.
    """
    outcomes = Outcomes(len(payloads))
    sender = open_to(outcomes.finish)
    log = send_all(times, _Numbered(sender, payloads), outcomes, drain_timeout_s=drain_s, progress=None)
    answered = outcomes.status == 0
    seconds = float(max(outcomes.done.max(), times[-1]))
    latencies = (outcomes.done - times)[answered] * 1e3
    message = next(iter(outcomes.messages.values()), "")
    return LoadResult(len(latencies) / seconds, latencies, int((~answered).sum()), log.cpu_s, seconds, message)


@dataclass(frozen=True, slots=True)
class _Numbered:
    sender: RequestSender
    payloads: Sequence[bytes]

    def send(self, number: int) -> None:
        """See `tidal_client.load.loop.NumberedSender`."""
        self.sender.send(number, self.payloads[number])

    def close(self) -> None:
        """See `tidal_client.load.loop.NumberedSender`."""
        self.sender.close()
