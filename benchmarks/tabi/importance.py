"""What it costs that a level says which words matter: its engine, and one of the same weights without that output."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.report import progress
from benchmarks.tabi.offline import OpenLevel
from benchmarks.tabi.prepare import Artefacts
from tidal.errors import Internal
from tidal.repository.entries import ModelEntry
from tidal.text.words import EncodedWords
from tidal_builders.arlo.build import build_arlo
from tidal_builders.arlo.spec import ArloSpec
from tidal_builders.specs import load_spec
from tidal_builders.tabi.spec import TabiSpec

_ROUNDS = 7


@dataclass(frozen=True, slots=True)
class Importance:
    """Mean milliseconds of a query on a level's engine with the attention that words receive, and without it.

    An engine cannot leave out an output that it was compiled with: `without_ms` is that of a second engine, which is
    made as the last level's is, with the attention fused. `ratios` are with / without by round.
    """

    level: str
    with_ms: float
    without_ms: float
    ratios: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The median over rounds."""
        return statistics.median(self.ratios)


def measure(artefacts: Artefacts, level: int, opened: OpenLevel, queries: Sequence[tuple[str, ...]]) -> Importance:
    """Run queries on both engines by turns, in seven rounds.

    Args:
        artefacts: of a task.
        level: index of a level that gives importance.
        opened: that level.
        queries: texts.
    """
    plain = OpenLevel(_built_without(artefacts, level), None)
    read = [opened.read(each) for each in queries]
    _round((opened, plain), read)  # what engines make for new shapes is made once
    rounds = [_round((opened, plain), read) for _ in range(_ROUNDS)]
    with_ms, without_ms = (statistics.median(each) for each in zip(*rounds, strict=True))
    return Importance(artefacts.manifest.levels[level].name, with_ms, without_ms, tuple(a / b for a, b in rounds))


def _round(levels: Sequence[OpenLevel], queries: Sequence[EncodedWords]) -> tuple[float, ...]:
    """Mean milliseconds of a query on each level; which of them begins changes with every query."""
    for level in levels:
        level.run(queries[0])
    spent = np.zeros(len(levels))
    for number, query in enumerate(queries):
        for turn in range(len(levels)):
            place = (number + turn) % len(levels)
            start = time.perf_counter()
            levels[place].run(query)
            spent[place] += time.perf_counter() - start
    return tuple((spent * 1e3 / len(queries)).tolist())


def _built_without(artefacts: Artefacts, level: int) -> Path:
    """Version folder of a level's weights with logits as the only output; built once."""
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
