"""Use of the cores during a measurement: by the parts of a system, by the sender, and by other work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil

ROUTER, DEVICES, REST = "router", "devices", "rest"
PARTS = (ROUTER, DEVICES, REST)


@dataclass(slots=True)
class Processor:
    """Shares of the cores during a block, from 0 to 1.

    Attributes:
        parts: Shares of the parts of the system.
        sender: Share of this process.
        others: Share of all other processes: near 0 on an idle machine.
        cores: Number of cores.
    """

    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    sender: float = 0.0
    others: float = 0.0
    cores: int = psutil.cpu_count() or 1

    @contextmanager
    def watch(self, pids: Sequence[int], part: Callable[[psutil.Process], str]) -> Iterator[None]:
        """Measure the block.

        Args:
            pids: Processes that started all others of the system.
            part: Returns the part that a process belongs to.
        """
        before, busy, mine, began = _seconds(pids, part), _busy_s(), time.process_time(), time.monotonic()
        yield
        available = (time.monotonic() - began) * self.cores
        busy, mine = _busy_s() - busy, time.process_time() - mine
        for pid, (name, seconds) in _seconds(pids, part).items():
            self.parts[name] += (seconds - before.get(pid, (name, 0.0))[1]) / available
        self.sender = mine / available
        self.others = max(0.0, busy / available - self.sender - sum(self.parts.values()))


def _seconds(pids: Sequence[int], part: Callable[[psutil.Process], str]) -> dict[int, tuple[str, float]]:
    """Return the part and the CPU seconds so far of each process."""
    found = {}
    for pid in pids:
        root = psutil.Process(pid)
        for each in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                times = each.cpu_times()
                found[each.pid] = (part(each), times.user + times.system)
    return found


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)
