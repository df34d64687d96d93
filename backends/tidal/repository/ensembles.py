"""Triton's own ensembles and the models of their steps: which have to be on the server for which."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tidal.errors import InvalidArgument
from tidal.repository.config import read_config
from tidal.repository.entries import ModelEntry, model_entries


@dataclass(frozen=True, slots=True)
class Ensemble:
    """An ensemble: its name, and the models of its steps in their order, each once. A step may be an ensemble too."""

    name: str
    steps: tuple[str, ...]


def ensemble(repository: Path, model: str) -> Ensemble | None:
    """The ensemble of a name; None for any other model, and for a config that cannot be read."""
    try:
        config = read_config(repository / model)
    except InvalidArgument:
        return None
    steps = config.get("ensemble_scheduling", {}).get("step", [])
    names = dict.fromkeys(step["model_name"] for step in steps if "model_name" in step)
    return Ensemble(model, tuple(names)) if names else None


def ensembles(repository: Path) -> list[Ensemble]:
    """Every ensemble of a repository, by name."""
    found = (ensemble(repository, entry.name) for entry in model_entries(repository))
    return [each for each in found if each is not None]


def with_steps(asked: Collection[str], known: Collection[Ensemble]) -> list[str]:
    """Names of models, and behind them those of all steps of the ensembles among them, of their steps' too."""
    steps = {each.name: each.steps for each in known}
    names = list(dict.fromkeys(asked))
    for name in names:  # grows meanwhile
        names += [step for step in steps.get(name, ()) if step not in names]
    return names


def lacking(repository: Path, found: Ensemble, there: Collection[str]) -> str | None:
    """Why an ensemble cannot be served with these models alone, as the end of a sentence; None where it can."""
    if not ModelEntry(repository / found.name).versions():
        return f"has no version, which of an ensemble is an empty folder: mkdir {repository / found.name / '1'}"
    missing = [step for step in found.steps if step not in there]
    return f"needs {' and '.join(missing)}, of which nothing is served" if missing else None
