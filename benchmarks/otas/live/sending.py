"""Open-loop load generator in a separate process, which the benchmark's memory does not slow down."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.otas.live.load import OtasLoad, schedule_of
from benchmarks.otas.live.switching import Loading, Switch, SwitchingSender
from tidal.server.child import RunningServer
from tidal_client.load import Times, run_load, summarise
from tidal_client.load.grpc_sender import GrpcSender
from tidal_client.load.sender import Finish, RequestSender
from tidal_client.transports.addresses import Address

_OUTPUTS = ("label", "gamma")
_TIMEOUT_S = 60.0
NOT_ANSWERED = ""


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers to a load.

    Attributes:
        seconds: Time from when each query should have been sent to its answer or error, of shape [queries].
        labels: Answered labels, `NOT_ANSWERED` for errors, of shape [queries].
        gammas: The γ of each answer, 0 for errors, of shape [queries].
        errors: Number of errors by code; UNAVAILABLE means an eviction.
        message: First error message with another code.
        warning: Warning that the load generator was the bottleneck; empty if it was not.
        cpu_s: Processor time of the load generator, in seconds.
        loadings: Loads of models during the run.
    """

    seconds: Times
    labels: Sequence[str]
    gammas: npt.NDArray[np.intp]
    errors: dict[str, int]
    message: str
    warning: str
    cpu_s: float
    loadings: tuple[Loading, ...]


class Sending:
    """Sends loads to a server from a separate process."""

    def __init__(self, server: RunningServer, pool: ProcessPoolExecutor) -> None:
        """Use `sending`."""
        self._server = server
        self._pool = pool

    def send(self, target: str | Switch, load: OtasLoad) -> Answers:
        """Send every query at its time, to a model or to the one of model switching, and wait for all answers."""
        return self._pool.submit(_send, self._server, target, load).result()


@contextmanager
def sending(server: RunningServer) -> Iterator[Sending]:
    """Start the process, and end it with the block."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield Sending(server, pool)


def _send(server: RunningServer, target: str | Switch, load: OtasLoad) -> Answers:
    answers: dict[int, bytes] = {}
    switching: list[SwitchingSender] = []

    def open_sender(address: Address, timeout_s: float, finish: Finish) -> RequestSender:
        sender = GrpcSender(address.location, timeout_s, finish, keep=answers.__setitem__)
        if isinstance(target, str):
            return sender
        switching.append(SwitchingSender(target, sender, server.control, finish))
        return switching[0]

    model = target if isinstance(target, str) else target.models[0]
    schedule = schedule_of(load)
    result = run_load(
        server.grpc, model, schedule, outputs=_OUTPUTS, timeout_s=_TIMEOUT_S, open_sender=open_sender
    )  # fmt: skip
    summary = summarise(result)
    labels, gammas = [NOT_ANSWERED] * len(load), np.zeros(len(load), np.intp)
    for number, answer in answers.items():
        labels[number], gammas[number] = _read(answer)
    unexpected = [f"{code}: {said}" for code, said in summary.messages.items() if code != "UNAVAILABLE"]
    return Answers(
        result.latency,
        labels,
        gammas,
        dict(summary.total.errors),
        unexpected[0] if unexpected else "",
        summary.generator.warning,
        result.cpu_s,
        tuple(switching[0].loadings) if switching else (),
    )


def _read(answer: bytes) -> tuple[str, int]:
    """Return label and γ of an answer of one row."""
    from tritonclient.grpc import service_pb2 as messages

    response = messages.ModelInferResponse.FromString(answer)
    found = dict(zip((each.name for each in response.outputs), response.raw_output_contents, strict=True))
    # A text of a tensor follows its length of 4 bytes.
    return found["label"][4:].decode(), int(np.frombuffer(found["gamma"], np.int32)[0])
