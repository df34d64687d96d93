"""The server of another node, whose runtimes' models a front calls."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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

    def call(
        self,
        model: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str],
        *,
        version: int,
        timeout_s: float,
        latency_ms: float | None = None,
    ) -> dict[str, Array]:
        """Run one request; see `tidal.service.ModelCall`.

        Args:
            model: Name of the model.
            inputs: Arrays by input name, including the batch axis.
            outputs: Names of the requested outputs.
            version: Version of the model.
            timeout_s: Time after which the server is taken for unreachable, in seconds.
            latency_ms: Time that remains until the query's deadline, in milliseconds, above 0; None for no deadline.

        Raises:
            ModelUnavailable: The server is unreachable, or the model cannot run the request now. The request may have
                run, and may be sent elsewhere: inference has no side effects.
            TidalError: The model answered with this error.
        """
        request, limit_s = self._request(model, inputs, outputs, timeout_s, latency_ms)
        with self._failures(model, late=limit_s < timeout_s):
            return self._checked(request, self._channel.infer(request, version, limit_s))

    def start(
        self,
        model: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str],
        *,
        version: int,
        timeout_s: float,
        latency_ms: float | None = None,
    ) -> RemoteRun | None:
        """Send one request if that takes no time; see `call`.

        Returns:
            The run to wait for; None if nothing was sent.
        """
        request, limit_s = self._request(model, inputs, outputs, timeout_s, latency_ms)
        with self._failures(model, late=limit_s < timeout_s):
            answer = self._channel.start(request, version, limit_s)
        return None if answer is None else RemoteRun(partial(self._result, request, answer, late=limit_s < timeout_s))

    def close(self) -> None:
        """Close the connection; calls that run fail with `ModelUnavailable`."""
        self._closing.set()
        self._channel.close()

    def _request(
        self,
        model: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str],
        timeout_s: float,
        latency_ms: float | None,
    ) -> tuple[InferRequest, float]:
        """Return a request and the longest time until its answer, in seconds."""
        if self._closing.is_set():
            raise self._disconnected()
        if not self._reachable:
            raise ModelUnavailable(f"node '{self._name}' is unreachable", died=False)
        parameters: dict[str, Parameter] = {CODED_ERRORS: True, FROM_MODEL: True}
        if latency_ms is not None:
            parameters["latency_ms"] = f"{latency_ms:.3f}"
            timeout_s = min(timeout_s, latency_ms / 1e3)
        if (span := current_span()) is not None:
            parameters["traceparent"] = span.header()
        return InferRequest(model, inputs, outputs, parameters), timeout_s

    def _result(self, request: InferRequest, answer: PendingAnswer, *, late: bool) -> dict[str, Array]:
        with self._failures(request.model, late=late):
            return self._checked(request, answer.result())

    def _checked(self, request: InferRequest, arrays: dict[str, Array]) -> dict[str, Array]:
        for name in request.outputs or ():
            if name not in arrays:
                raise Unavailable(f"model '{request.model}' of node '{self._name}' did not give the output '{name}'")
        return arrays

    @contextmanager
    def _failures(self, model: str, *, late: bool) -> Iterator[None]:
        try:
            yield
        except CallFailed as error:
            if self._closing.is_set():
                raise self._disconnected() from None
            raise self._failure(model, error, late=late) from None

    def _disconnected(self) -> ModelUnavailable:
        return ModelUnavailable(f"node '{self._name}' was disconnected", died=False)

    def _failure(self, model: str, error: CallFailed, *, late: bool) -> Exception:
        """Return the error of a failed call.

        Args:
            model: Name of the model that was called.
            error: Why there is no answer.
            late: Whether the call was limited by the deadline of its query, which says little about the node.
        """
        message = str(error)
        found = parse_remote_error(model, message)
        if isinstance(found, ModelUnavailable):
            return found
        if error.timed_out and late:
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
        threading.Thread(target=self._probe, args=(unreachable,), name=f"probe-{self._name}", daemon=True).start()

    def _lose(self, message: str) -> None:
        """Send no more calls, with the lock held."""
        if self._reachable:
            self._reachable = False
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
