"""Measurements of a run, kept in a file, so that an interrupted run resumes where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.flover.outcome import FloverOutcome
from benchmarks.flover.systems import Form

_CLOSE = 2.0


@dataclass
class FloverRun:
    """Outcomes by case, system and round, and the settings chosen for baselines.

    Attributes:
        file: File that the run is kept in.
        outcomes: Outcomes by case and system, one per round.
        forms: Chosen settings of the baselines, by system.
        searched: A row per tried setting: system, settings, seconds, whether it was chosen.
        peers_s: Seconds of each peer in the search.
        missing: Reason why a system does not run, by its model.
        facts: Other measurements, by name.
    """

    file: Path
    outcomes: dict[str, dict[str, list[FloverOutcome]]] = field(default_factory=dict)
    forms: dict[str, Form] = field(default_factory=dict)
    searched: list[tuple[str, str, float | None, bool]] = field(default_factory=list)
    peers_s: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def close_peers(self) -> list[str]:
        """Peers that took at most `_CLOSE` times as long as the fastest one in the search."""
        limit = _CLOSE * min(self.peers_s.values(), default=0.0)
        return [model for model, seconds in self.peers_s.items() if seconds <= limit]

    @classmethod
    def open(cls, file: Path) -> FloverRun:
        """Read a kept run, or return an empty one."""
        if not file.exists():
            return cls(file)
        found = json.loads(file.read_text())
        outcomes = {
            case: {system: [FloverOutcome.read(each) for each in rounds] for system, rounds in of_case.items()}
            for case, of_case in found["outcomes"].items()
        }
        forms = {name: Form(**form) for name, form in found["forms"].items()}
        searched = [(what, form, seconds, taken) for what, form, seconds, taken in found["searched"]]
        return cls(file, outcomes, forms, searched, found["peers_s"], found["missing"], found["facts"])

    def save(self) -> None:
        """Write the file."""
        aside = self.file.with_suffix(".part")
        aside.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(asdict(self), default=str))
        aside.replace(self.file)

    def rounds(self, case: str, system: str) -> list[FloverOutcome]:
        """Return the outcomes of a system in a case, one per round; empty if not measured."""
        return self.outcomes.get(case, {}).get(system, [])

    def fact(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return a kept measurement, or measure and keep it."""
        if name not in self.facts:
            self.facts[name] = measure()
            self.save()
        return self.facts[name]

    def drop(self, model: str, reason: str) -> None:
        """Record that a system does not run."""
        self.missing[model] = reason
        self.forms.pop(model, None)
        self.peers_s.pop(model, None)

    def count(self) -> int:
        """Return the number of kept outcomes."""
        return sum(len(rounds) for of_case in self.outcomes.values() for rounds in of_case.values())
