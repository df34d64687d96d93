"""The server of another node, whose runtimes' models a front calls over gRPC."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tidal.errors import InvalidArgument, Unavailable
from tidal.options import CODED_ERRORS, FROM_MODEL
from tidal.repository.cluster_table import RemoteNode
from tidal.requests import Array
from tidal.service import ModelUnavailable
from tidal.serving.coded_errors import parse_remote_error
from tidal.tracing.current import current_span

# gRPC waits up to two minutes before it connects again to a server that was away.
_CHANNEL = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Otherwise all channels of a process to one address share their connection, and with it its failures.
    ("grpc.use_local_subchannel_pool", 1),
    # Proxies of the environment are for other machines.
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
]
_PROBE_PAUSE_S = 0.25
_PROBE_TIMEOUT_S = 0.5
# Statuses of a call that did not reach a server which answers, and the status of one that took too long.
_UNREACHABLE = ("StatusCode.UNAVAILABLE", "StatusCode.CANCELLED")
_TIMED_OUT = "StatusCode.DEADLINE_EXCEEDED"


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
        # Imported here: only fronts with other nodes need it, and it takes 0.2 s.
        from tritonclient import grpc

        self.node = node
        self._grpc = grpc
        self._name, self._log = name, log
        self._client = grpc.InferenceServerClient(node.grpc, channel_args=_CHANNEL, **_tls(name, node))
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
        if not self._reachable:
            raise ModelUnavailable(f"node '{self._name}' is unreachable", died=False)
        parameters: dict[str, Any] = {CODED_ERRORS: True, FROM_MODEL: True}
        limit_s = timeout_s
        if latency_ms is not None:
            parameters["latency_ms"] = f"{latency_ms:.3f}"
            limit_s = min(timeout_s, latency_ms / 1e3)
        if (span := current_span()) is not None:
            parameters["traceparent"] = span.header()
        try:
            result = self._client.infer(
                model,
                [self._input(name, array) for name, array in inputs.items()],
                str(version),
                [self._grpc.InferRequestedOutput(name) for name in outputs],
                client_timeout=limit_s,
                parameters=parameters,
            )
        except self._grpc.InferenceServerException as error:
            raise self._failure(model, error, late=limit_s < timeout_s) from None
        except ValueError:  # the channel was closed: the node was disconnected
            raise ModelUnavailable(f"node '{self._name}' was disconnected", died=False) from None
        arrays: dict[str, Array] = {}
        for name in outputs:
            array = result.as_numpy(name)
            if array is None:
                raise Unavailable(f"model '{model}' of node '{self._name}' did not give the output '{name}'")
            arrays[name] = array
        return arrays

    def close(self) -> None:
        """Close the connection; calls that run fail with `ModelUnavailable`."""
        self._closing.set()
        self._client.close()

    def _input(self, name: str, array: Array) -> Any:
        given = self._grpc.InferInput(name, list(array.shape), "INT64")
        given.set_data_from_numpy(array)
        return given

    def _failure(self, model: str, error: Any, *, late: bool) -> Exception:
        """Return the error of a failed call.

        Args:
            model: Name of the model that was called.
            error: Error of the client.
            late: Whether the call was limited by the deadline of its query, which says little about the node.
        """
        status, message = error.status(), str(error.message())
        found = parse_remote_error(model, message)
        if isinstance(found, ModelUnavailable):
            return found
        if status == _TIMED_OUT and late:
            self._examine(message, unreachable=False)
            return ModelUnavailable(f"node '{self._name}' did not answer before the query's deadline", died=False)
        if status == _TIMED_OUT or (status in _UNREACHABLE and not message.startswith("[")):
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
            self._log.warning(f"node '{self._name}' at {self.node.grpc} is unreachable: {message[:200]}")

    def _probe(self, pause_first: bool) -> None:
        began = time.monotonic()
        if pause_first:
            self._closing.wait(_PROBE_PAUSE_S)
        while not self._closing.is_set():
            try:
                live, reason = self._client.is_server_live(client_timeout=_PROBE_TIMEOUT_S), "it is not live"
            except (self._grpc.InferenceServerException, ValueError) as error:
                live, reason = False, str(error)
            with self._lock:
                if live:
                    if not self._reachable:
                        self._log.info(f"node '{self._name}' answers again after {time.monotonic() - began:.1f} s")
                    self._reachable, self._probing = True, False
                    return
                self._lose(reason)
            self._closing.wait(_PROBE_PAUSE_S)


def _tls(name: str, node: RemoteNode) -> dict[str, Any]:
    """Return the arguments of a client for a node's TLS."""
    if node.tls is None:
        return {}
    files = {"root_certificates": node.tls.ca, "certificate_chain": node.tls.certificate, "private_key": node.tls.key}
    for file in files.values():
        try:
            if file is not None:
                Path(file).read_bytes()
        except OSError as error:
            raise InvalidArgument(f"nodes.{name}.tls: {file} cannot be read: {error.strerror}") from None
    return {"ssl": True, **files}
