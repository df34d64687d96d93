"""Model switching as in INFaaS: queries go to the model size that suits the load, which Triton then loads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tidal.errors import TidalError
from tidal.server.control import ServerControl
from tidal.simulator.otas import SizeByLoad
from tidal_client.errors import RequestError, Unavailable
from tidal_client.load.sender import Finish, RequestSender

_UNLOAD_S, _LOOK_S = 60.0, 0.05
_PRESENT = ("READY", "LOADING", "UNLOADING")


@dataclass(frozen=True, slots=True)
class Switch:
    """Model sizes to switch between.

    Attributes:
        models: Names of the models, from fast to accurate.
        throughputs: Measured throughput of each, in queries per second.
        resident: Whether all are always loaded; else one is, initially the middle one.
    """

    models: Sequence[str]
    throughputs: Sequence[float]
    resident: bool


@dataclass(frozen=True, slots=True)
class Loading:
    """Load of a model in place of another: start by the run's clock, and duration, in seconds."""

    model: str
    at: float
    seconds: float


@dataclass
class SwitchingSender:
    """Sends each query to the model that `SizeByLoad` chooses, as in the simulation, in real time.

    If one model is loaded at a time, queries wait here while the next one is loaded; meanwhile the previous one answers
    its accepted queries, and is then unloaded. The waiting time is subtracted from the deadlines sent to the server.

    Args:
        switch: Model sizes.
        sender: Sender to the server.
        control: Control connection to the server.
        finish: Callback of the sender, for queries that are never sent.
    """

    switch: Switch
    sender: RequestSender
    control: ServerControl
    finish: Finish
    clock: Callable[[], float] = time.monotonic
    loadings: list[Loading] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._choice = SizeByLoad(self.switch.throughputs)
        self._start: float | None = None
        self._lock = threading.Lock()
        # Queries that wait for a model's load, with the time since which they wait; None while no load runs.
        self._held: list[tuple[int, bytes, float]] | None = None
        self._loader: threading.Thread | None = None

    def send(self, number: int, payload: bytes) -> None:
        """See `Sender.send`."""
        moment = self.clock()
        if self._start is None:
            self._start = moment
        now = moment - self._start
        self._choice.arrived(now)
        with self._lock:
            before = self._choice.place
            if not self._switches() and self._choice.look(now) and not self.switch.resident:
                self._held = []
                models = self.switch.models
                names = (models[before], models[self._choice.place])
                self._loader = threading.Thread(target=self._replace, args=(*names, now), name="otas-loader")
                self._loader.start()
            if self._held is not None:
                self._held.append((number, payload, moment))
                return
            model = self.switch.models[self._choice.place]
        self._pass_on(number, payload, model, 0.0, None)

    def close(self) -> None:
        """See `Sender.close`."""
        if self._loader is not None:
            self._loader.join()
        self.sender.close()

    def _switches(self) -> bool:
        """Whether a model is being replaced."""
        return self._loader is not None and self._loader.is_alive()

    def _replace(self, before: str, model: str, at: float) -> None:
        begin, error = self.clock(), None
        try:
            self.control.load(model, None)
        except TidalError as failed:
            error = Unavailable(f"{model} cannot be loaded: {failed}")
        self.loadings.append(Loading(model, at, self.clock() - begin))
        with self._lock:
            held, self._held = self._held or [], None
            for number, payload, since in held:
                self._pass_on(number, payload, model, self.clock() - since, error)
        unload(self.control, [before])

    def _pass_on(self, number: int, payload: bytes, model: str, waited_s: float, error: RequestError | None) -> None:
        if error is not None:
            self.finish(number, error)
            return
        left = sent_to(payload, model, waited_s)
        if left is None:
            self.finish(number, Unavailable(f"its deadline passed while {model} was loaded"))
        else:
            self.sender.send(number, left)


def unload(control: ServerControl, models: Sequence[str]) -> None:
    """Unload models and wait until they have ended their threads and freed their memory.

    Raises:
        RuntimeError: A model was not unloaded.
    """
    for model in _present(control, models):
        control.unload(model)
    until = time.monotonic() + _UNLOAD_S
    while left := _present(control, models):
        if time.monotonic() > until:
            raise RuntimeError(f"the server does not unload {', '.join(left)}")
        time.sleep(_LOOK_S)


def _present(control: ServerControl, models: Sequence[str]) -> list[str]:
    there = {each.name for each in control.index() if each.state in _PRESENT}
    return [model for model in models if model in there]


def sent_to(payload: bytes, model: str, waited_s: float) -> bytes | None:
    """Change the model and the deadline of a serialised request; returns None if no time is left."""
    from tritonclient.grpc import service_pb2 as messages

    request = messages.ModelInferRequest.FromString(payload)
    request.model_name = model
    latency = request.parameters["latency_ms"]
    left_ms = latency.double_param - 1e3 * waited_s
    if left_ms <= 0:
        return None
    latency.double_param = left_ms
    return bytes(request.SerializeToString())
