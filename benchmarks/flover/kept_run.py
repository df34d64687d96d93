"""What a run has measured, kept in a file as it comes: a run that was cut short goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.flover.outcome import Outcome
from benchmarks.flover.systems import Form

_CLOSE = 2.0


@dataclass
class Run:
    """Outcomes by case, system and round, and forms that were chosen.

    Attributes:
        file: to keep it in.
        outcomes: by case and system, one for each round.
        forms: of the baselines, by what they were chosen for.
        searched: a row for each form that was tried: for what, form, seconds, whether it was taken.
        peers_s: seconds of each peer in the search.
        missing: why a system does not run, by its model.
        facts: what else was measured, by name.
    """

    file: Path
    outcomes: dict[str, dict[str, list[Outcome]]] = field(default_factory=dict)
    forms: dict[str, Form] = field(default_factory=dict)
    searched: list[tuple[str, str, float | None, bool]] = field(default_factory=list)
    peers_s: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def close_peers(self) -> list[str]:
        """Peers that took at most so many times as long as the fastest one in the search."""
        limit = _CLOSE * min(self.peers_s.values(), default=0.0)
        return [model for model, seconds in self.peers_s.items() if seconds <= limit]

    @classmethod
    def open(cls, file: Path) -> Run:
        """What is kept, or an empty run."""
        if not file.exists():
            return cls(file)
        found = json.loads(file.read_text())
        outcomes = {
            case: {system: [Outcome.read(each) for each in rounds] for system, rounds in of_case.items()}
            for case, of_case in found["outcomes"].items()
        }
        forms = {name: Form(**form) for name, form in found["forms"].items()}
        searched = [(what, form, seconds, taken) for what, form, seconds, taken in found["searched"]]
        return cls(file, outcomes, forms, searched, found["peers_s"], found["missing"], found["facts"])

    def save(self) -> None:
        """Write it all."""
        aside = self.file.with_suffix(".part")
        aside.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(asdict(self), default=str))
        aside.replace(self.file)

    def rounds(self, case: str, system: str) -> list[Outcome]:
        """What a system did in a case; none where it was not measured."""
        return self.outcomes.get(case, {}).get(system, [])

    def fact(self, name: str, measure: Callable[[], Any]) -> Any:
        """Measure something, unless it is kept."""
        if name not in self.facts:
            self.facts[name] = measure()
            self.save()
        return self.facts[name]

    def drop(self, model: str, reason: str) -> None:
        """Note that a system does not run."""
        self.missing[model] = reason
        self.forms.pop(model, None)
        self.peers_s.pop(model, None)

    def count(self) -> int:
        """Runs that are kept."""
        return sum(len(rounds) for of_case in self.outcomes.values() for rounds in of_case.values())
