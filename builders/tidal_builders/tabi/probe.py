"""A cascade whose every configuration can be asked for by name: what the serving overhead is measured on."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from tidal.manifest import MANIFEST_FILE
from tidal.tabi.manifest import (
    Calibration,
    Candidate,
    Expected,
    Latency,
    Level,
    RegressionCalibration,
    TabiManifest,
    Target,
)
from tidal_builders.publishing import file_records
from tidal_builders.tabi.config import cascade_config_pbtxt
from tidal_builders.tabi.versions import LevelVersion

# Requests ask for a configuration by its score, which is a whole number of these.
_SCORE_STEP = 0.01
# A scale that asks for attention and reads every word, and removes none: engines then run on the whole query.
_PRUNES_NOTHING = 1e-6
# At these a level is sure of nothing, and every query goes on.
_ALWAYS_ON = 0.999
_UNSURE = {
    "classification": Calibration(temperature=1e6),
    "regression": Calibration(
        regression=RegressionCalibration(
            tolerance=1e-9, values=(0.0,), deviations=(1.0,), expected=(0.0, 1.0), observed=(0.0, 1.0)
        )
    ),
}


@dataclass(frozen=True, slots=True)
class Way:
    """Levels that a query runs on one after the other, whatever they answer.

    Attributes:
        levels: their places, ascending.
        pruned: whether words are weighed between them.
    """

    levels: tuple[int, ...]
    pruned: bool = False


@dataclass(frozen=True, slots=True)
class Probe:
    """The ways of a published probe; `accuracy` is the request option that chooses one."""

    ways: tuple[Way, ...]

    def accuracy(self, way: int) -> float:
        """The request option that sends a query one of the ways."""
        return (way + 0.5) * _SCORE_STEP


def ways_of(levels: Sequence[LevelVersion]) -> tuple[Way, ...]:
    """Each level alone, and each pair of levels, also with word pruning where the first of them has attention."""
    places = range(len(levels))
    pairs = list(itertools.combinations(places, 2))
    alone = [Way((place,)) for place in places]
    return (*alone, *map(Way, pairs), *(Way(pair, pruned=True) for pair in pairs if levels[pair[0]].attention))


def write_probe(
    folder: Path,
    names: Sequence[str],
    levels: Sequence[LevelVersion],
    orders: Sequence[tuple[int, ...] | None],
    *,
    task: Literal["classification", "regression"],
    labels: Sequence[str],
    pairs: bool,
) -> Probe:
    """Write a cascade's model folder, with version 1 of it.

    Args:
        folder: of the model; its name is the model's.
        names: of the levels, ascending by score.
        levels: the same levels' versions, whose models lie beside the folder.
        orders: the place of each of the cascade's labels in the same levels' logits.
        task: of the cascade.
        labels: of the cascade.
        pairs: whether queries are pairs of texts.
    """
    version = folder / "1"
    (version / "tokenizers").mkdir(parents=True)
    written = []
    for place, (name, level, order) in enumerate(zip(names, levels, orders, strict=True)):
        file = f"tokenizers/{name}.json"
        shutil.copyfile(level.folder / level.tokenizer.file, version / file)
        written.append(
            Level(
                name=name,
                model=level.model,
                task=level.task,
                version=level.version,
                fingerprint=level.fingerprint,
                tokenizer=level.tokenizer.model_copy(update={"file": file}),
                max_length=level.max_length,
                order=order,
                attention=level.attention,
                calibration=_UNSURE[task],
                score=float(place),
                latency=_latency(1),
            )
        )
    ways = ways_of(levels)
    # The last one names all levels, so that all are opened; nothing is sent that way.
    everything = Way(tuple(range(len(levels))))
    manifest = TabiManifest(
        kind="tabi",
        name=folder.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        spec="",
        fingerprint="",
        libraries={},
        files=file_records(version),
        task=task,
        pairs=pairs,
        metric="accuracy" if task == "classification" else "pearson",
        labels=tuple(labels),
        data="",
        rows={},
        levels=tuple(written),
        candidates=tuple(_candidate(number, way) for number, way in enumerate((*ways, everything))),
        target=Target(accuracy=0),
        chosen=len(ways),
    )
    (version / MANIFEST_FILE).write_text(manifest.model_dump_json())
    truncate = 'parameters { key: "truncate" value { string_value: "true" } }\n'
    (folder / "config.pbtxt").write_text(cascade_config_pbtxt(manifest) + truncate)
    return Probe(ways)


def _candidate(number: int, way: Way) -> Candidate:
    """The fastest of those whose score is at least its own, which increases with its number."""
    count = len(way.levels)
    several = count > 1
    expected = Expected(
        score=(number + 1) * _SCORE_STEP, latency=_latency(number + 1), returned=(*(0.0,) * (count - 1), 1.0), pruned=0
    )
    return Candidate(
        name=str(number),
        levels=way.levels,
        cutoff=_ALWAYS_ON if several else None,
        slope=1.0 if several else None,
        pruning=_PRUNES_NOTHING if way.pruned else None,
        weights=tuple((1 / size,) * size for size in range(1, count + 1)),
        selection=expected,
        reported=expected,
    )


def _latency(ms: float) -> Latency:
    return Latency(mean=ms, p25=ms, p50=ms, p75=ms, p99=ms)
