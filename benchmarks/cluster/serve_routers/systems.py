"""The compared systems: Tidal's front, fronts with other dispatchers, and Ray Serve by its ingresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Protocol

import numpy as np
import psutil

from benchmarks.cluster.serve_routers.loads import Load
from benchmarks.cluster.serve_routers.processor import DEVICES, REST, ROUTER
from benchmarks.cluster.serve_routers.ray_serve import Form, Ingress, RayNodes
from benchmarks.encoders.load import LoadResult, OpenTo, closed_loop, open_loop, sender_to
from tidal.repository.names import runtime_model
from tidal.server.child import RunningServer
from tidal_client.load.payloads import encode
from tidal_client.load.sender import Finish, RequestSender
from tidal_client.transports.addresses import Address
from tidal_client.transports.http_messages import request_bytes

# Time to wait for answers after the last query of an open loop, in seconds.
_DRAIN_S = 20.0
# Field number 1 of `google.protobuf.BytesValue`, of a length that is given as a varint.
_BYTES_VALUE = 0x0A


class System(Protocol):
    """A running system of three nodes."""

    @property
    def pids(self) -> Sequence[int]:
        """Ids of the processes that started all others of it."""

    def part(self, process: psutil.Process) -> str:
        """Return the part that a process belongs to."""

    def prepare(self) -> None:
        """Apply its settings."""

    def send(self, load: Load) -> LoadResult:
        """Send a load to all nodes in turn."""


@dataclass(frozen=True)
class TidalFront:
    """A front on three nodes.

    Attributes:
        model: Name of the front.
        servers: Servers of the nodes.
        devices: Name of the front whose runtimes it uses.
    """

    model: str
    servers: Sequence[RunningServer]
    devices: str

    @property
    def pids(self) -> list[int]:
        """See `System.pids`."""
        return [server.state.pid for server in self.servers]

    def part(self, process: psutil.Process) -> str:
        """See `System.part`: tritonserver and the fronts are the router."""
        return DEVICES if runtime_model(self.devices, 0).rstrip("0") in " ".join(process.cmdline()) else ROUTER

    def prepare(self) -> None:
        """See `System.prepare`."""

    def send(self, load: Load) -> LoadResult:
        """See `System.send`."""
        locations = [server.state.http for server in self.servers]
        payloads = [self._payloads[length] for length in load.lengths]
        return send(_spread([sender_to(each) for each in locations]), payloads, load)

    @cached_property
    def _payloads(self) -> ByLength:
        address = Address("http", self.servers[0].state.http)
        return ByLength(lambda ids: encode(address, self.model, {"input_ids": ids[None]}, ["logits"], {}))


@dataclass(frozen=True)
class RaySystem:
    """Ray Serve on three nodes, with its settings.

    Attributes:
        nodes: Its nodes.
        form: Settings and ingress.
    """

    nodes: RayNodes
    form: Form

    @property
    def pids(self) -> list[int]:
        """See `System.pids`."""
        return [self.nodes.pid]

    def part(self, process: psutil.Process) -> str:
        """See `System.part`: proxies, and for its handle the process that sends, are the router."""
        title = " ".join(process.cmdline())
        if title.startswith("ray::ServeReplica"):
            return DEVICES
        routes = title.startswith(("ray::ProxyActor", "ray::HAProxyManager")) or "haproxy" in process.name()
        driver = self.form.ingress is Ingress.HANDLE and process.pid == self.nodes.pid
        return ROUTER if routes or driver else REST

    def prepare(self) -> None:
        """See `System.prepare`."""
        self.nodes.use(self.form)

    def send(self, load: Load) -> LoadResult:
        """See `System.send`; by its handle it is sent in one of its processes, without an ingress."""
        if self.form.ingress is Ingress.HANDLE:
            return self.nodes.drive(load)
        grpc = self.form.ingress is Ingress.GRPC
        locations = self.nodes.grpc if grpc else self.nodes.http
        payloads = [(self._messages if grpc else self._requests)[length] for length in load.lengths]
        return send(_spread([sender_to(each, grpc=grpc) for each in locations]), payloads, load)

    @cached_property
    def _requests(self) -> ByLength:
        return ByLength(lambda ids: request_bytes(self.nodes.http[0], "/", ids.tobytes()))

    @cached_property
    def _messages(self) -> ByLength:
        return ByLength(lambda ids: bytes_value(ids.tobytes()))


@dataclass(frozen=True)
class ByLength:
    """Requests by length in tokens, each encoded once.

    Attributes:
        encode: Encodes the token ids of a query, [tokens].
    """

    encode: Callable[[np.ndarray[tuple[int, ...], np.dtype[np.int64]]], bytes]
    _made: dict[int, bytes] = field(default_factory=dict)

    def __getitem__(self, length: int) -> bytes:
        if length not in self._made:
            self._made[length] = self.encode(np.ones(length, np.int64))
        return self._made[length]


class SpreadSender:
    """Sends to several entrances in turn.

    Args:
        open_to: Opens the sender to each entrance.
        finish: Called at the end of each request.
    """

    def __init__(self, open_to: Sequence[OpenTo], finish: Finish) -> None:
        self._senders: list[RequestSender] = [each(finish) for each in open_to]

    def send(self, number: int, payload: bytes) -> None:
        """See `RequestSender.send`."""
        self._senders[number % len(self._senders)].send(number, payload)

    def close(self) -> None:
        """See `RequestSender.close`."""
        for sender in self._senders:
            sender.close()


def send(open_to: OpenTo, payloads: Sequence[bytes], load: Load) -> LoadResult:
    """Send a load.

    Args:
        open_to: Opens the sender.
        payloads: Requests of the load.
        load: The load.
    """
    if load.times is None:
        return closed_loop(open_to, payloads, in_flight=load.in_flight, seconds=load.seconds, warm_s=load.warm_s)
    return open_loop(open_to, payloads, load.times, drain_s=_DRAIN_S)


def bytes_value(content: bytes) -> bytes:
    """Return a serialised `google.protobuf.BytesValue`."""
    size, varint = len(content), bytearray()
    while size > 0x7F:
        varint.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([_BYTES_VALUE, *varint, size]) + content


def _spread(open_to: Sequence[OpenTo]) -> OpenTo:
    return partial(SpreadSender, open_to)
