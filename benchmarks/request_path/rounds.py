"""Alternated rounds of closed loops, so that all sides meet the same other work on the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.request_path.bare import BareConfig
from benchmarks.request_path.load import Generator
from benchmarks.request_path.measure import RequestPathCell, measure
from benchmarks.request_path.systems import MakeRequests
from tidal.server.child import RunningServer

# Seeds of texts of the search and of warm-ups are above those of measured ones.
_SEARCHED, _WARM_UP = 1_000_000, 2_000_000
_WARM_S = 0.6


@dataclass(frozen=True, slots=True)
class Side:
    """One of the compared models.

    Attributes:
        server: Server that it is loaded on.
        make: Makes the requests of a round.
    """

    server: RunningServer
    make: MakeRequests


@dataclass
class Bench:
    """What measures.

    Attributes:
        generator: Load generator.
        seconds: Length of a measurement in seconds.
        rounds: Number of rounds.
        searched: Rows of the table of the search.
    """

    generator: Generator
    seconds: float
    rounds: int
    searched: list[list[str]] = field(default_factory=list)
    _warm: set[tuple[str, str]] = field(default_factory=set)
    _speeds: dict[tuple[str, int], float] = field(default_factory=dict)

    def alternate(self, sides: Mapping[str, Side], concurrency: int) -> dict[str, list[RequestPathCell]]:
        """Measure all sides in every round, in alternating order.

        Args:
            sides: Compared models by name.
            concurrency: Number of requests in flight.
        """
        for side in sides.values():
            # An engine compiles for each length that it has not seen, and the search has warmed one of the sides.
            self.measure(side, concurrency, seed=_WARM_UP + concurrency, seconds=self.seconds / 2)
        cells: dict[str, list[RequestPathCell]] = {name: [] for name in sides}
        for turn in range(self.rounds):
            for name in sides if turn % 2 == 0 else reversed(list(sides)):
                cells[name].append(self.measure(sides[name], concurrency, seed=100 * concurrency + turn))
        return cells

    def measure(self, side: Side, concurrency: int, seed: int, seconds: float | None = None) -> RequestPathCell:
        """Measure one model once; it is warmed up before its first measurement.

        Args:
            side: The model.
            concurrency: Number of requests in flight.
            seed: Seed of the texts.
            seconds: Length of the measurement in seconds; None: that of a round.
        """
        requests = side.make(seed)
        known = (side.server.grpc, requests.model)
        if known not in self._warm:
            measure(side.server, self.generator, requests, concurrency=8, seconds=_WARM_S)
            self._warm.add(known)
        return measure(side.server, self.generator, requests, concurrency=concurrency, seconds=seconds or self.seconds)

    def speed(self, side: Side, candidate: BareConfig, concurrency: int) -> float:
        """Measure a candidate of the search on texts of its own; a repeated question is answered from memory."""
        key = (candidate.model, concurrency)
        if key not in self._speeds:
            cell = self.measure(side, concurrency, seed=_SEARCHED + concurrency, seconds=self.seconds / 2)
            self._speeds[key] = cell.per_second
            row = [candidate.engine, candidate.settings, str(concurrency), f"{cell.per_second:.0f}"]
            self.searched.append([*row, f"{cell.p50_ms:.2f}", f"{cell.p99_ms:.1f}"])
        return self._speeds[key]
