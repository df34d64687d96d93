"""What a run has measured so far, in a file, so that an interrupted run can resume."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.encoders.systems import Form


@dataclass(frozen=True, slots=True)
class EncoderCell:
    """One measurement of a system.

    Attributes:
        per_second: Requests answered per second.
        mean_ms: Mean latency in ms.
        p50_ms: Median latency in ms.
        p99_ms: 99th percentile of the latency in ms.
        failed: Number of failed requests.
        utilisation: Share of the cores that the system used, from 0 to 1.
        client: Share of the cores that the load generator used, from 0 to 1.
        mean_batch: Mean number of rows per batch; None if the system does not count batches.
    """

    per_second: float
    mean_ms: float
    p50_ms: float
    p99_ms: float
    failed: int
    utilisation: float
    client: float
    mean_batch: float | None


@dataclass
class EncoderRun:
    """Measurements of a run.

    Attributes:
        file: File that they are stored in.
        forms: Settings chosen by the search: by task and peer, for one and for more requests in flight.
        speeds: Requests per second of the chosen settings in the search, by task and peer, for more in flight.
        searched: Rows of the table of the search.
        missing: Reason why a peer does not run, by task and peer.
        agreement: Agreement of each system's answers with the source model's, by task.
        cells: Measurements by case and system, one per round.
        facts: Results of further measurements.
    """

    file: Path
    forms: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    speeds: dict[str, dict[str, float]] = field(default_factory=dict)
    searched: list[list[str]] = field(default_factory=list)
    missing: dict[str, dict[str, str]] = field(default_factory=dict)
    agreement: dict[str, dict[str, float]] = field(default_factory=dict)
    cells: dict[str, dict[str, list[EncoderCell]]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def open(cls, file: Path) -> EncoderRun:
        """Return the measurements of a file, or a run without any."""
        if not file.exists():
            return cls(file)
        found = json.loads(file.read_text(encoding="utf-8"))
        cells = {
            case: {system: [EncoderCell(**each) for each in rounds] for system, rounds in systems.items()}
            for case, systems in found.pop("cells").items()
        }
        return cls(file, cells=cells, **found)

    def save(self) -> None:
        """Store the measurements."""
        content = {name: value for name, value in self.__dict__.items() if name not in ("file", "cells")}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        half = self.file.with_suffix(".part")
        half.write_text(json.dumps({**content, "cells": self.cells_json()}), encoding="utf-8")
        half.rename(self.file)

    def cells_json(self) -> dict[str, Any]:
        """Return all measurements for JSON."""
        return {
            case: {system: [asdict(each) for each in rounds] for system, rounds in systems.items()}
            for case, systems in self.cells.items()
        }

    def form(self, task: str, system: str, *, lone: bool) -> Form:
        """Return the settings of a peer.

        Args:
            task: Task of its model.
            system: Name of the peer.
            lone: Whether one request is in flight.
        """
        return Form(system, self.forms[task][system][0 if lone else 1])

    def median(self, case: str, system: str, figure: str) -> float:
        """Return the median of a figure over the rounds."""
        return float(statistics.median(getattr(cell, figure) for cell in self.cells[case][system]))

    def fact(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return a result of an earlier part of this run, or measure and store it."""
        if name not in self.facts:
            self.facts[name] = measure()
            self.save()
        return self.facts[name]
