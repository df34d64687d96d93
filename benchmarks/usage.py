"""CPU usage of the machine during a measurement."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from benchmarks.closed_loop import cpu_seconds
from tidal.server.child import RunningServer


@dataclass(slots=True)
class Usage:
    """CPU seconds over all watched blocks.

    Attributes:
        server_s: CPU seconds of the server.
        others_s: CPU seconds of other work.
        available_s: CPU seconds available on all cores.
    """

    server_s: float = 0.0
    others_s: float = 0.0
    available_s: float = 0.0

    @contextmanager
    def watch(self, server: RunningServer) -> Iterator[None]:
        """Add the usage inside the block; this process counts as neither server nor other work.

        Args:
            server: Running server.
        """
        own, busy, start = cpu_seconds(server), _busy_seconds(), time.monotonic()
        mine = time.process_time()
        yield
        own, busy, mine = cpu_seconds(server) - own, _busy_seconds() - busy, time.process_time() - mine
        self.server_s += own
        self.others_s += max(0.0, busy - own - mine)
        self.available_s += (time.monotonic() - start) * (psutil.cpu_count() or 1)

    @property
    def server(self) -> float:
        """Share of the cores that the server used."""
        return self.server_s / self.available_s if self.available_s else 0.0

    @property
    def others(self) -> float:
        """Share of the cores that other work used: near 0 on an idle machine."""
        return self.others_s / self.available_s if self.available_s else 0.0


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)
