"""The server of another node, whose runtimes' models a front calls."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from tidal.arlo.node_channel import CallFailed, NodeChannel, PendingAnswer
from tidal.errors import Unavailable
from tidal.options import CODED_ERRORS, FROM_MODEL
from tidal.repository.cluster_table import RemoteNode
from tidal.requests import Array
from tidal.service import ModelUnavailable
from tidal.serving.coded_errors import parse_remote_error
from tidal.tracing.current import current_span
from tidal_client.codec import InferRequest
from tidal_client.options import Parameter

_PROBE_PAUSE_S = 0.25
_PROBE_TIMEOUT_S = 0.5


@dataclass(frozen=True, slots=True)
class RemoteCall:
    """A call of a model on another node.

    Attributes:
        model: Name of the model.
        inputs: Arrays by input name, including the batch axis.
        outputs: Names of the requested outputs.
        version: Version of the model.
        timeout_s: Time after which the server is taken for unreachable, in seconds.
        latency_ms: Time that remains until the query's deadline, in milliseconds, above 0; None for no deadline.
    """

    model: str
    inputs: Mapping[str, Array]
    outputs: Sequence[str]
    version: int
    timeout_s: float
    latency_ms: float | None = None

    @property
    def limit_s(self) -> float:
        """Longest time until its answer, in seconds."""
        return self.timeout_s if self.latency_ms is None else min(self.timeout_s, self.latency_ms / 1e3)


class RemoteServer:
    """Calls models of another node's server. Any thread may call it, and waits for the answer.

    A node that refuses or breaks connections, or does not answer in time, is unreachable: calls fail at once until a
    probe, sent every 250 ms, is answered.

    Args:
        name: Name of the node.
        node: Its address.
        log: Logger of the model.

    Raises:
        InvalidArgument: A file of its TLS settings cannot be read.
    """

    def __init__(self, name: str, node: RemoteNode, log: logging.Logger) -> None:
        self.node = node
        self._name, self._log = name, log
        self._channel = _open_channel(name, node)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._reachable, self._probing = True, False

    @property
    def reachable(self) -> bool:
        """Whether the server answered the last call or probe."""
        return self._reachable

    def call(self, call: RemoteCall) -> dict[str, Array]:
        """Send a call and wait for its outputs, by name; see `tidal.service.ModelCall`.

        Raises:
            ModelUnavailable: The server is unreachable, or the model cannot run the call now. It may have run, and may
                be sent elsewhere: inference has no side effects.
            TidalError: The model answered with this error.
        """
        request = self._request(call)
        with self._failures(call):
            return self._checked(call, self._channel.infer(request, call.version, call.limit_s))

    def start(self, call: RemoteCall) -> RemoteRun | None:
        """Send a call if that takes no time; see `call`.

        Returns:
            The run to wait for; None if nothing was sent.
        """
        request = self._request(call)
        with self._failures(call):
            answer = self._channel.start(request, call.version, call.limit_s)
        return None if answer is None else RemoteRun(partial(self._result, call, answer))

    def close(self) -> None:
        """Close the connection; calls that run fail with `ModelUnavailable`."""
        self._closing.set()
        self._channel.close()

    def _request(self, call: RemoteCall) -> InferRequest:
        if self._closing.is_set():
            raise self._disconnected()
        if not self._reachable:
            raise ModelUnavailable(f"node '{self._name}' is unreachable", died=False)
        parameters: dict[str, Parameter] = {CODED_ERRORS: True, FROM_MODEL: True}
        if call.latency_ms is not None:
            parameters["latency_ms"] = f"{call.latency_ms:.3f}"
        if (span := current_span()) is not None:
            parameters["traceparent"] = span.header()
        return InferRequest(call.model, call.inputs, call.outputs, parameters)

    def _result(self, call: RemoteCall, answer: PendingAnswer) -> dict[str, Array]:
        with self._failures(call):
            return self._checked(call, answer.result())

    def _checked(self, call: RemoteCall, arrays: dict[str, Array]) -> dict[str, Array]:
        for name in call.outputs:
            if name not in arrays:
                raise Unavailable(f"model '{call.model}' of node '{self._name}' did not give the output '{name}'")
        return arrays

    @contextmanager
    def _failures(self, call: RemoteCall) -> Iterator[None]:
        """Convert the failure of a call."""
        try:
            yield
        except CallFailed as error:
            if self._closing.is_set():
                raise self._disconnected() from None
            raise self._failure(call, error) from None

    def _disconnected(self) -> ModelUnavailable:
        return ModelUnavailable(f"node '{self._name}' was disconnected", died=False)

    def _failure(self, call: RemoteCall, error: CallFailed) -> Exception:
        """Return the error of a call that has no answer."""
        message = str(error)
        found = parse_remote_error(call.model, message)
        if isinstance(found, ModelUnavailable):
            return found
        if error.timed_out and call.limit_s < call.timeout_s:  # the deadline of its query says little about the node
            self._examine(message, unreachable=False)
            return ModelUnavailable(f"node '{self._name}' did not answer before the query's deadline", died=False)
        if error.timed_out or (error.unreachable and not message.startswith("[")):
            self._examine(message, unreachable=True)
            return ModelUnavailable(f"node '{self._name}' is unreachable", died=False)
        return found

    def _examine(self, message: str, *, unreachable: bool) -> None:
        """Probe the server in another thread until it answers.

        Args:
            message: Text of the error that gave rise to this.
            unreachable: Whether the node gets no calls until then; else only if the first probe fails.
        """
        with self._lock:
            if self._closing.is_set():
                return
            if unreachable:
                self._lose(message)
            if self._probing:
                return
            self._probing = True
        try:
            threading.Thread(target=self._probe, args=(unreachable,), name=f"probe-{self._name}", daemon=True).start()
        except RuntimeError as error:  # no further threads now: the next call finds out
            self._log.warning(f"node '{self._name}' cannot be probed: {error}")
            with self._lock:
                self._reachable, self._probing = True, False

    def _lose(self, message: str) -> None:
        """Send no more calls, with the lock held."""
        if self._reachable:
            self._reachable = False
            self._channel.close_idle()
            address = self.node.http or self.node.grpc
            self._log.warning(f"node '{self._name}' at {address} is unreachable: {message[:200]}")

    def _probe(self, pause_first: bool) -> None:
        began = time.monotonic()
        if pause_first:
            self._closing.wait(_PROBE_PAUSE_S)
        while not self._closing.is_set():
            try:
                live, reason = self._channel.live(_PROBE_TIMEOUT_S), "it is not live"
            except CallFailed as error:
                live, reason = False, str(error)
            with self._lock:
                if self._closing.is_set():
                    return
                if live:
                    if not self._reachable:
                        self._log.info(f"node '{self._name}' answers again after {time.monotonic() - began:.1f} s")
                    self._reachable, self._probing = True, False
                    return
                self._lose(reason)
            self._closing.wait(_PROBE_PAUSE_S)


class RemoteRun:
    """A request that another node runs; implements `tidal.engines.base.StartedRun`.

    Args:
        result: Waits for the outputs; called once.
    """

    def __init__(self, result: Callable[[], dict[str, Array]]) -> None:
        self._result = result

    def wait(self, timeout_s: float | None = None) -> dict[str, Array] | None:
        """See `StartedRun.wait`; with a limit it does not wait, since a node may always hang."""
        return None if timeout_s is not None else self._result()


def _open_channel(name: str, node: RemoteNode) -> NodeChannel:
    """Return a channel to a node's server: over HTTP where its endpoint is known.

    Imported here: only fronts with other nodes need them, and gRPC takes 0.2 s.
    """
    if node.http is not None:
        from tidal.arlo.node_http import HttpNodeChannel

        return HttpNodeChannel(node.http)
    from tidal.arlo.node_grpc import GrpcNodeChannel

    return GrpcNodeChannel(name, node)
