"""Runs: send the requests of a schedule and record their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tidal_client.client import DEFAULT_TIMEOUT_S
from tidal_client.errors import InvalidArgument
from tidal_client.load.arrivals import Times
from tidal_client.load.balanced_sender import BalancedSender
from tidal_client.load.generations import GenerationSender, stream_request
from tidal_client.load.grpc_sender import GrpcSender
from tidal_client.load.http_sender import HttpSender
from tidal_client.load.loop import NumberedSender, Outcomes, Progress, send_all
from tidal_client.load.mix import RequestVariant, assign
from tidal_client.load.payloads import encode
from tidal_client.load.result import Generations, LoadResult
from tidal_client.load.retry_sender import RetrySender
from tidal_client.load.sender import Finish, OpenSender, RequestSender
from tidal_client.results import Array
from tidal_client.transports.addresses import Address, parse_urls

# Senders end every request within its timeout; the reserve covers a machine that was suspended.
_RESERVE_S: Final = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Requests with their send times; one schedule can be run against several systems.

    Raises:
        InvalidArgument: There are no arrivals or no inputs, or the times are negative or not ascending.
    """

    #: Send times in seconds from the start of the run, ascending, [requests].
    times: Times
    #: Arrays by input name, with the batch axis first. Request i sends `inputs[i % len(inputs)]`.
    inputs: Sequence[Mapping[str, Array]]
    mix: Sequence[RequestVariant] = (RequestVariant(),)
    #: Seed of the variants: equal seeds assign the same variants.
    seed: int = 0
    #: Index into `mix` of each request, [requests].
    variants: npt.NDArray[np.intp] = field(init=False)

    def __post_init__(self) -> None:
        times = self.times
        if not len(times) or not len(self.inputs) or not len(self.mix):
            raise InvalidArgument("schedule: expected at least one arrival, one input and one variant")
        if not (np.isfinite(times).all() and times[0] >= 0 and (np.diff(times) >= 0).all()):
            raise InvalidArgument("schedule: expected finite, ascending times of at least 0")
        object.__setattr__(self, "variants", assign(self.mix, len(times), self.seed))

    def __len__(self) -> int:
        return len(self.times)


def open_sender(address: Address, timeout_s: float, finish: Finish) -> RequestSender:
    """Open the sender for the address's protocol; see `OpenSender`."""
    make = GrpcSender if address.protocol == "grpc" else HttpSender
    return make(address.location, timeout_s, finish)


def run_load(
    url: str | Sequence[str],
    model: str,
    schedule: Schedule,
    *,
    outputs: Sequence[str] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    retries: int = 0,
    progress: Progress | None = None,
    open_sender: OpenSender = open_sender,
) -> LoadResult:
    """Send every request of a schedule at its time and wait until all have ended.

    Args:
        url: `grpc://HOST:PORT`, or `http://HOST:PORT`, which costs the generator a fifth of the processor time. Several
            of one protocol: requests are distributed, and sent again after a `ConnectionFailed`, as by `Client`.
        model: Name of the model.
        schedule: Requests with their send times.
        outputs: Names of the outputs to request; None: all.
        timeout_s: Timeout of each attempt in seconds; then the request counts as `DEADLINE_EXCEEDED`.
        retries: Maximum number of retries, as with `Client(retries=...)`; the last attempt begins within `timeout_s`
            of the first.
        progress: Called from a separate thread during the run.
        open_sender: Opens the sender; another one than the default may keep responses or send to several models.

    Raises:
        InvalidArgument: The URL or an input cannot be used. Errors of single requests are in the result.
    """
    addresses = parse_urls(url)
    address = addresses[0]
    if any(each.protocol != address.protocol for each in addresses):
        raise InvalidArgument(f"url: a load of single answers has one protocol; got {', '.join(url)}")
    payloads = _payloads(address, model, schedule, outputs)
    outcomes = Outcomes(len(schedule))

    def opened(finish: Finish) -> RequestSender:
        if len(addresses) == 1:
            return open_sender(address, timeout_s, finish)
        return BalancedSender(addresses, lambda each, ended: open_sender(each, timeout_s, ended), model, finish)

    def again(number: int, left_ms: float | None) -> bytes:
        variant = schedule.mix[int(schedule.variants[number])]
        left = variant.parameters if left_ms is None else {**variant.parameters, "latency_ms": left_ms}
        return encode(address, model, schedule.inputs[number % len(schedule.inputs)], outputs, left)

    retry_sender = None
    again_possible = bool(retries) or len(addresses) > 1
    if again_possible:
        retry_sender = RetrySender(
            opened,
            again,
            outcomes.finish,
            retries=retries,
            timeout_s=timeout_s,
            deadlines_ms=_deadlines_ms(schedule),
            addresses=len(addresses),
        )
    sending = _Payloads(opened(outcomes.finish) if retry_sender is None else retry_sender, payloads)
    drain_timeout_s = timeout_s * (2 if again_possible else 1) + _RESERVE_S
    result = _run(schedule, sending, outcomes, drain_timeout_s, progress)
    return result if retry_sender is None else replace(result, resent=retry_sender.resent)


def run_generations(
    url: str | Sequence[str],
    model: str,
    schedule: Schedule,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    retries: int = 0,
    progress: Progress | None = None,
) -> LoadResult:
    """Send a schedule to a model that generates text, each request as a stream; see `run_load`.

    Args:
        url: `grpc://HOST:PORT` or `http://HOST:PORT`, or several, see `run_load`.
        model: Name of the model.
        schedule: Requests with their send times; inputs have no batch axis: `text_input` [1] or `input_ids` [tokens].
        timeout_s: Timeout for each part of a stream, in seconds.
        retries: Maximum number of retries before a stream has begun.
        progress: See `run_load`.

    Returns:
        Result of the run with `generated`; `done` is the end of each stream.

    Raises:
        InvalidArgument: The URL cannot be used, or the model's name is empty.
    """
    addresses = parse_urls(url)
    requests = [
        stream_request(model, schedule.inputs[number % len(schedule.inputs)], schedule.mix[variant].parameters)
        for number, variant in enumerate(schedule.variants.tolist())
    ]
    outcomes = Outcomes(len(schedule))
    sender = GenerationSender(addresses, requests, outcomes, timeout_s=timeout_s, retries=retries)
    # The length of a stream is unknown in advance, so there is no limit on the wait for its end.
    result = _run(schedule, sender, outcomes, None, progress)
    return replace(result, resent=sender.resent, generated=Generations(sender.first, sender.tokens))


class _Payloads:
    """Sends serialised requests by number."""

    def __init__(self, sender: RequestSender, payloads: Sequence[bytes]) -> None:
        self._sender, self._payloads = sender, payloads

    def send(self, number: int) -> None:
        """See `NumberedSender.send`."""
        self._sender.send(number, self._payloads[number])

    def close(self) -> None:
        """See `NumberedSender.close`."""
        self._sender.close()


def _run(
    schedule: Schedule,
    sending: NumberedSender,
    outcomes: Outcomes,
    drain_timeout_s: float | None,
    progress: Progress | None,
) -> LoadResult:
    sent = send_all(schedule.times, sending, outcomes, drain_timeout_s=drain_timeout_s, progress=progress)
    return LoadResult(
        schedule.times,
        sent.times,
        outcomes.done,
        outcomes.status,
        tuple(outcomes.codes),
        outcomes.messages,
        schedule.variants,
        tuple(schedule.mix),
        sent.cpu_s,
        sent.started,
        np.zeros(len(schedule), np.intp),
    )


def _deadlines_ms(schedule: Schedule) -> list[float | None]:
    own = [variant.parameters.get("latency_ms") for variant in schedule.mix]
    found = [None if each is None else float(each) for each in own]
    return [found[variant] for variant in schedule.variants.tolist()]


def _payloads(address: Address, model: str, schedule: Schedule, outputs: Sequence[str] | None) -> list[bytes]:
    if not model:
        raise InvalidArgument("model: expected the name of a model, got an empty string")
    made: dict[tuple[int, int], bytes] = {}
    payloads = []
    for number, variant in enumerate(schedule.variants.tolist()):
        key = (number % len(schedule.inputs), variant)
        if key not in made:
            made[key] = encode(address, model, schedule.inputs[key[0]], outputs, schedule.mix[variant].parameters)
        payloads.append(made[key])
    return payloads
