"""The cost of the importance of words: a level's engine, against one with the same weights without that output."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.report import progress
from benchmarks.tabi.artefacts import TaskArtefacts
from testing.cascades import OpenLevel
from tidal.errors import Internal
from tidal.repository.entries import ModelEntry
from tidal.text.words import EncodedWords
from tidal_builders.arlo.build import build_arlo
from tidal_builders.arlo.spec import ArloSpec
from tidal_builders.specs import load_spec
from tidal_builders.tabi.spec import TabiSpec

_ROUNDS = 7


@dataclass(frozen=True, slots=True)
class ImportanceCost:
    """Mean milliseconds of a query on a level's engine with the attention that words receive, and without it.

    An engine cannot leave out an output that it was compiled with: `without_ms` is from a second engine, which is
    built like the last level's, with fused attention. `ratios` are with / without by round.
    """

    level: str
    with_ms: float
    without_ms: float
    ratios: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Median ratio over rounds."""
        return statistics.median(self.ratios)


def measure(
    artefacts: TaskArtefacts, level: int, opened: OpenLevel, queries: Sequence[tuple[str, ...]]
) -> ImportanceCost:
    """Run queries on both engines alternately, in seven rounds.

    Args:
        artefacts: Artefacts of a task.
        level: Index of a level that gives importance.
        opened: The same level, opened.
        queries: Texts of the queries.
    """
    plain = OpenLevel(_built_without(artefacts, level), None)
    read = [opened.read(each) for each in queries]
    _round((opened, plain), read)  # engines prepare each new shape once
    rounds = [_round((opened, plain), read) for _ in range(_ROUNDS)]
    with_ms, without_ms = (statistics.median(each) for each in zip(*rounds, strict=True))
    return ImportanceCost(artefacts.manifest.levels[level].name, with_ms, without_ms, tuple(a / b for a, b in rounds))


def _round(levels: Sequence[OpenLevel], queries: Sequence[EncodedWords]) -> tuple[float, ...]:
    """Return the mean milliseconds of a query on each level; their order changes with every query."""
    for level in levels:
        level.run(queries[0])
    spent = np.zeros(len(levels))
    for number, query in enumerate(queries):
        for offset in range(len(levels)):
            place = (number + offset) % len(levels)
            start = time.perf_counter()
            levels[place].run(query)
            spent[place] += time.perf_counter() - start
    return tuple((spent * 1e3 / len(queries)).tolist())


def _built_without(artefacts: TaskArtefacts, level: int) -> Path:
    """Return the version folder of a level's weights with logits as the only output; built once."""
    spec = load_spec(artefacts.folder / f"{artefacts.task.name}.yaml")
    assert isinstance(spec, TabiSpec)
    own = next(each for each in spec.levels if each.name == artefacts.manifest.levels[level].name)
    options = spec.runtimes_of(own).model_dump(exclude_unset=True)
    model = ArloSpec(kind="arlo", name=f"{spec.model_of(own)}_plain", model=own.model, **options)
    repository = artefacts.folder / "plain"
    progress(f"{artefacts.task.name}: {own.name} without importance (nothing to build when it is up to date)")
    build_arlo(model, repository)
    latest = ModelEntry(repository / model.name).latest()
    if latest is None:
        raise Internal(f"{model.name} misses its tolerance")
    return latest
