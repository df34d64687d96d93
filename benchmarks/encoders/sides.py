"""Running systems: Tidal, peers behind HTTP, and FastEmbed in a process without a server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.closed_loop import batches, cpu_seconds
from benchmarks.encoders import formats
from benchmarks.encoders.formats import Values, ask
from benchmarks.encoders.load import LONGEST, LoadResult, closed_loop, open_loop, sender_to
from benchmarks.encoders.prepare import model_name
from benchmarks.encoders.processes import read_counts, tree_cpu_seconds
from benchmarks.encoders.source import Task
from benchmarks.encoders.systems import ONNX, TORCH, Form
from benchmarks.encoders.workload import Rows
from tidal.server.child import RunningServer
from tidal_client.load.arrivals import Times

# Time to wait for answers after the last request of an open loop.
_DRAIN_S = 30.0


class Side(Protocol):
    """A running system with the model of one task."""

    def encode(self, requests: Sequence[Rows]) -> Sequence[Any]:
        """Return requests as they are sent, so that a measurement does not include this."""

    def closed(
        self, payloads: Sequence[Any], *, in_flight: int, seconds: float, warm_s: float, least: int = 0
    ) -> LoadResult:
        """Keep a number of requests in flight; see `benchmarks.encoders.load.closed_loop`."""

    def open(self, payloads: Sequence[Any], times: Times) -> LoadResult:
        """Send each request at its time; see `benchmarks.encoders.load.open_loop`."""

    def answer(self, rows: Rows) -> Values:
        """Return the embeddings or scores of one request, [rows, values]."""

    def cpu_seconds(self) -> float:
        """Return the CPU seconds that all its processes have used so far."""

    def counts(self) -> tuple[float, float] | None:
        """Return the numbers of rows and of batches so far; None if it does not count them."""


@dataclass(frozen=True, eq=False)
class TidalSide:
    """A model of a running `tidal serve`.

    Attributes:
        server: Running server.
        task: Task of the model.
        precision: Precision of the model.
        grpc: Whether requests are sent over gRPC.
    """

    server: RunningServer
    task: Task
    precision: str = "fp32"
    grpc: bool = False

    def encode(self, requests: Sequence[Rows]) -> list[bytes]:
        """See `Side.encode`."""
        encode = partial(formats.tidal_request, precision=self.precision, grpc=self.grpc)
        return [encode(self._location, self.task, rows) for rows in requests]

    def closed(
        self, payloads: Sequence[bytes], *, in_flight: int, seconds: float, warm_s: float, least: int = 0
    ) -> LoadResult:
        """See `Side.closed`."""
        open_to = sender_to(self._location, grpc=self.grpc)
        return closed_loop(open_to, payloads, in_flight=in_flight, seconds=seconds, warm_s=warm_s, least=least)

    def open(self, payloads: Sequence[bytes], times: Times) -> LoadResult:
        """See `Side.open`."""
        return open_loop(sender_to(self._location, grpc=self.grpc), payloads, times, drain_s=_DRAIN_S)

    def answer(self, rows: Rows) -> Values:
        """See `Side.answer`."""
        encode = partial(formats.tidal_request, precision=self.precision)
        return ask(self.server.state.http, self.task, rows, encode, partial(formats.read_tidal, json_length=None))

    def cpu_seconds(self) -> float:
        """See `Side.cpu_seconds`."""
        return cpu_seconds(self.server)

    def counts(self) -> tuple[float, float] | None:
        """See `Side.counts`."""
        return batches(self.server, model_name(self.task, self.precision))

    @property
    def _location(self) -> str:
        return self.server.state.grpc if self.grpc else self.server.state.http


@dataclass(frozen=True, eq=False)
class PeerSide:
    """A peer behind HTTP.

    Attributes:
        form: The peer with its settings.
        task: Task of its model.
        process: Its main process.
        location: `host:port` that it serves.
        folder: Folder of its counts.
    """

    form: Form
    task: Task
    process: subprocess.Popen[str]
    location: str
    folder: Path

    def encode(self, requests: Sequence[Rows]) -> list[bytes]:
        """See `Side.encode`."""
        return [self._encode(self.location, self.task, rows) for rows in requests]

    def closed(
        self, payloads: Sequence[bytes], *, in_flight: int, seconds: float, warm_s: float, least: int = 0
    ) -> LoadResult:
        """See `Side.closed`."""
        open_to = sender_to(self.location)
        return closed_loop(open_to, payloads, in_flight=in_flight, seconds=seconds, warm_s=warm_s, least=least)

    def open(self, payloads: Sequence[bytes], times: Times) -> LoadResult:
        """See `Side.open`."""
        return open_loop(sender_to(self.location), payloads, times, drain_s=_DRAIN_S)

    def answer(self, rows: Rows) -> Values:
        """See `Side.answer`."""
        read = formats.read_infinity if self._is_infinity else formats.read_plain
        return ask(self.location, self.task, rows, self._encode, read)

    def cpu_seconds(self) -> float:
        """See `Side.cpu_seconds`."""
        return tree_cpu_seconds(self.process.pid)

    def counts(self) -> tuple[float, float] | None:
        """See `Side.counts`."""
        return read_counts(self.folder)

    @property
    def _is_infinity(self) -> bool:
        return self.form.system in (TORCH, ONNX)

    def _encode(self, location: str, task: Task, rows: Rows) -> bytes:
        encode = formats.infinity_request if self._is_infinity else formats.plain_request
        return encode(location, task, rows)


@dataclass(frozen=True, eq=False)
class InProcessSide:
    """FastEmbed in a process of its own, which computes as many requests per call as would be in flight.

    Attributes:
        process: Its process.
    """

    process: subprocess.Popen[str]

    def encode(self, requests: Sequence[Rows]) -> Sequence[Rows]:
        """See `Side.encode`."""
        return requests

    def closed(
        self, payloads: Sequence[Rows], *, in_flight: int, seconds: float, warm_s: float, least: int = 0
    ) -> LoadResult:
        """See `Side.closed`; a request's latency is the time of its call."""
        if warm_s:
            self._call(payloads[:in_flight], in_flight, warm_s, answers=False)
            payloads = payloads[in_flight:]
        times = self._call(payloads, in_flight, seconds, answers=False)["times"]
        for _ in range(LONGEST - 1):
            left = payloads[len(times) * in_flight :]
            if len(times) * in_flight >= least or len(left) < in_flight:
                break
            times += self._call(left, in_flight, seconds, answers=False)["times"]
        latencies = np.repeat(np.array(times) * 1e3, in_flight)
        spent = float(sum(times))
        return LoadResult(len(latencies) / spent, latencies, 0, 0.0, spent)

    def open(self, payloads: Sequence[Rows], times: Times) -> LoadResult:
        """Raise an error: it has no server.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("FastEmbed runs in process: it has no open loop")

    def answer(self, rows: Rows) -> Values:
        """See `Side.answer`."""
        (values,) = self._call([rows], 1, 0.0, answers=True)["values"]
        found = np.array(values, np.float64).reshape(len(rows), -1)
        # It returns logits of cross-encoders, and the others scores.
        return found if isinstance(rows[0], str) else 1 / (1 + np.exp(-found))

    def cpu_seconds(self) -> float:
        """See `Side.cpu_seconds`."""
        return tree_cpu_seconds(self.process.pid)

    def counts(self) -> tuple[float, float] | None:
        """See `Side.counts`."""
        return None

    def _call(
        self, requests: Sequence[Rows], together: int, seconds: float, *, answers: bool
    ) -> dict[str, list[float]]:
        starts = range(0, len(requests) - together + 1, together)
        calls = [[row for rows in requests[at : at + together] for row in rows] for at in starts]
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"calls": calls, "seconds": seconds, "answers": answers}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("FastEmbed's process ended")
        found: dict[str, list[float]] = json.loads(line)
        return found


def warm_up(side: Side, requests: Sequence[Rows], *, in_flight: int, seconds: float) -> None:
    """Send requests whose times do not count: the first ones of a system are slow, those of a compiled model very slow.

    Args:
        side: Running system.
        requests: Requests that are not measured.
        in_flight: Number of requests in flight.
        seconds: Length in seconds.
    """
    side.answer(requests[0])
    side.closed(side.encode(requests[1:]), in_flight=in_flight, seconds=seconds, warm_s=0.0)
