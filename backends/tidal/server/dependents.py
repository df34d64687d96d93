"""Which models of a repository need which others."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from tidal.repository.cascades import cascades
from tidal.repository.ensembles import ensembles
from tidal.repository.partitioned import front_of


def dependents(repository: Path, model: str, among: Collection[str]) -> list[str]:
    """Models that need this one, directly or through others: its front, cascades with it as a level, ensembles.

    Args:
        repository: where the models are.
        model: the model's name.
        among: the models that are considered.
    """
    needs: dict[str, set[str]] = {}
    for name in among:
        if (front := front_of(repository, name)) is not None:
            needs.setdefault(front, set()).add(name)
    for cascade in cascades(repository):
        needs.setdefault(cascade.name, set()).update(cascade.levels)
    for joint in ensembles(repository):
        needs.setdefault(joint.name, set()).update(joint.steps)
    found: set[str] = set()
    new = {model}
    while new:
        new = {name for name in among if name not in found and name != model and needs.get(name, set()) & new}
        found |= new
    return sorted(found)
