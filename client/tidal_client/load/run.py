"""An open loop: every request goes out at its time, whatever became of those before it."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from tidal_client.client import DEFAULT_TIMEOUT_S
from tidal_client.errors import DeadlineExceeded, InvalidArgument, RequestError
from tidal_client.load.arrivals import Times
from tidal_client.load.mix import Variant, assign
from tidal_client.load.payloads import encode
from tidal_client.load.senders import OpenSender, open_sender
from tidal_client.results import Array
from tidal_client.transports import Address, parse_url

OK: Final = "OK"
#: Called twice a second with the numbers of requests sent and ended.
Progress = Callable[[int, int], None]

_PENDING = -1
_PROGRESS_S = 0.5
# Between connecting and the first request, for the connections to settle.
_LEAD_S = 0.05
# Python lets a thread run this long before another may; its default, 5 ms, would delay sends.
_SWITCH_S = 0.0005


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """What is sent and when; the same one can be run against several systems.

    Raises:
        InvalidArgument: no arrivals or inputs, or times that do not ascend from 0 or later.
    """

    #: Seconds from the start of the run, ascending, [requests].
    times: Times
    #: Arrays by input name, the batch axis first. Request i sends `inputs[i % len(inputs)]`.
    inputs: Sequence[Mapping[str, Array]]
    mix: Sequence[Variant] = (Variant(),)
    #: Equal seeds give the same requests the same variants of the mix.
    seed: int = 0
    #: Index into `mix`, [requests].
    variants: npt.NDArray[np.intp] = field(init=False)

    def __post_init__(self) -> None:
        times = self.times
        if not len(times) or not len(self.inputs) or not len(self.mix):
            raise InvalidArgument("schedule: expected at least one arrival, one input and one variant")
        if not (np.isfinite(times).all() and times[0] >= 0 and (np.diff(times) >= 0).all()):
            raise InvalidArgument("schedule: expected finite times that ascend from 0 or later")
        object.__setattr__(self, "variants", assign(self.mix, len(times), self.seed))

    def __len__(self) -> int:
        return len(self.times)


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
    mix: tuple[Variant, ...]
    #: Processor seconds of this process meanwhile, all threads.
    cpu_s: float
    #: Seconds since the epoch at the start of the run.
    started: float

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


class _Outcomes:
    """Ends of requests, as senders report them from whatever thread."""

    def __init__(self, count: int) -> None:
        self.done = np.zeros(count)
        self.status = np.full(count, _PENDING, np.intp)
        self.messages: dict[str, str] = {}
        self.codes = [OK]
        self.ended = 0
        self.start = 0.0
        self.all_ended = threading.Event()
        self._lock = threading.Lock()

    def finish(self, number: int, error: RequestError | None) -> None:
        now = time.perf_counter()
        with self._lock:
            if self.status[number] != _PENDING:
                return
            self.done[number] = now - self.start
            self.status[number] = 0 if error is None else self._code(error)
            self.ended += 1
            if self.ended == len(self.status):
                self.all_ended.set()

    def _code(self, error: RequestError) -> int:
        if error.code not in self.messages:
            self.messages[error.code] = str(error)
            self.codes.append(error.code)
        return self.codes.index(error.code)


def run_load(
    url: str,
    model: str,
    schedule: Schedule,
    *,
    outputs: Sequence[str] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    progress: Progress | None = None,
    open_sender: OpenSender = open_sender,
) -> LoadResult:
    """Send every request of a schedule at its time and wait until all have ended.

    Args:
        url: `grpc://HOST:PORT`, or `http://HOST:PORT`, which costs this machine a fifth of the processor time.
        model: name of the model.
        schedule: what to send and when.
        outputs: names of the wanted outputs; None asks for all.
        timeout_s: how long to wait for each answer; then the request counts as `DEADLINE_EXCEEDED`.
        progress: called from a thread of its own while the run lasts.
        open_sender: how requests travel, where they do not just go to the server: a sender may keep the answers, or
            send to other models as well.

    Raises:
        InvalidArgument: a URL or an input that cannot be sent. Errors of single requests are in the result.
    """
    address = parse_url(url)
    payloads = _payloads(address, model, schedule, outputs)
    outcomes = _Outcomes(len(schedule))
    sent = np.zeros(len(schedule))
    times = schedule.times.tolist()
    sender = open_sender(address, timeout_s, outcomes.finish)
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(progress, sent, outcomes, over), name="tidal-load-progress")
    with _undisturbed():
        try:
            start = outcomes.start = time.perf_counter() + _LEAD_S
            started, cpu = time.time() + _LEAD_S, time.process_time()
            watcher.start()
            for number, (moment, payload) in enumerate(zip(times, payloads, strict=True)):
                delay = start + moment - time.perf_counter()
                if delay > 0:
                    time.sleep(delay)
                sent[number] = time.perf_counter() - start
                sender.send(number, payload)
            # Senders end every request in time; the reserve is for a machine that stood still.
            if not outcomes.all_ended.wait(timeout_s + 10):
                for number in np.flatnonzero(outcomes.status == _PENDING):
                    outcomes.finish(int(number), DeadlineExceeded(f"no answer within {timeout_s:g} s"))
            cpu = time.process_time() - cpu
        finally:
            over.set()
            watcher.join()
            sender.close()
    return LoadResult(
        schedule.times,
        sent,
        outcomes.done,
        outcomes.status,
        tuple(outcomes.codes),
        outcomes.messages,
        schedule.variants,
        tuple(schedule.mix),
        cpu,
        started,
    )


def _payloads(address: Address, model: str, schedule: Schedule, outputs: Sequence[str] | None) -> list[bytes]:
    if not model:
        raise InvalidArgument("model: expected the name of a model, got an empty text")
    made: dict[tuple[int, int], bytes] = {}
    payloads = []
    for number, variant in enumerate(schedule.variants.tolist()):
        key = (number % len(schedule.inputs), variant)
        if key not in made:
            made[key] = encode(address, model, schedule.inputs[key[0]], outputs, schedule.mix[variant].parameters)
        payloads.append(made[key])
    return payloads


def _watch(progress: Progress | None, sent: Times, outcomes: _Outcomes, over: threading.Event) -> None:
    if progress is not None:
        while not over.wait(_PROGRESS_S):
            progress(int(np.count_nonzero(sent)), outcomes.ended)
        progress(int(np.count_nonzero(sent)), outcomes.ended)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep Python itself from holding up sends: no full garbage collection over what is there already."""
    interval = sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.unfreeze()
