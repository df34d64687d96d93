"""The probe: a cascade with a request option for each configuration, on which the serving overhead is measured."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tidal.manifest import MANIFEST_FILE
from tidal.tabi.manifest import (
    Calibration,
    Candidate,
    CascadeTask,
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

# A request selects a configuration by its score, which is a multiple of this step.
_SCORE_STEP = 0.01
# A scale at which attention is computed and words are examined, but none is removed: engines run on the whole query.
_PRUNES_NOTHING = 1e-6
# A cut-off and calibrations at which every query is re-routed.
_ALWAYS_REROUTED = 0.999
_UNSURE = {
    "classification": Calibration(temperature=1e6),
    "rerank": Calibration(temperature=1e6),
    "regression": Calibration(
        regression=RegressionCalibration(
            tolerance=1e-9, values=(0.0,), deviations=(1.0,), expected=(0.0, 1.0), observed=(0.0, 1.0)
        )
    ),
}


@dataclass(frozen=True, slots=True)
class ProbeRoute:
    """Levels that a query runs on one after the other, independent of their answers.

    Attributes:
        levels: Positions of the levels, ascending.
        pruned: Whether the importance of words is computed between them.
    """

    levels: tuple[int, ...]
    pruned: bool = False


@dataclass(frozen=True, slots=True)
class Probe:
    """The routes of a published probe; the request option `accuracy` selects one."""

    routes: tuple[ProbeRoute, ...]

    def accuracy(self, route: int) -> float:
        """Return the request option `accuracy` that selects a route.

        Args:
            route: Index of the route.
        """
        return (route + 0.5) * _SCORE_STEP


def probe_routes(levels: Sequence[LevelVersion]) -> tuple[ProbeRoute, ...]:
    """Return a route for each level alone and for each pair of levels, also with word pruning if the first can prune.

    Args:
        levels: Versions of the levels, ascending by score.
    """
    places = range(len(levels))
    pairs = list(itertools.combinations(places, 2))
    alone = [ProbeRoute((place,)) for place in places]
    return (
        *alone,
        *map(ProbeRoute, pairs),
        *(ProbeRoute(pair, pruned=True) for pair in pairs if levels[pair[0]].attention),
    )


def write_probe(
    folder: Path,
    names: Sequence[str],
    levels: Sequence[LevelVersion],
    orders: Sequence[tuple[int, ...] | None],
    *,
    task: CascadeTask,
    labels: Sequence[str],
    pairs: bool,
) -> Probe:
    """Write the probe's model folder with its version 1.

    Args:
        folder: Folder of the model; its name is the model's.
        names: Names of the levels, ascending by score.
        levels: Versions of the same levels; their models are in the same repository as the folder.
        orders: Index of each of the cascade's labels in each of these levels' logits.
        task: Task of the cascade.
        labels: Labels of the cascade.
        pairs: Whether queries are pairs of texts.
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
    routes = probe_routes(levels)
    # The last candidate names all levels, so that all are opened; no query uses it.
    everything = ProbeRoute(tuple(range(len(levels))))
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
        metric="pearson" if task == "regression" else "accuracy",
        labels=tuple(labels),
        data="",
        rows={},
        levels=tuple(written),
        candidates=tuple(_candidate(number, route) for number, route in enumerate((*routes, everything))),
        target=Target(accuracy=0),
        chosen=len(routes),
    )
    (version / MANIFEST_FILE).write_text(manifest.model_dump_json())
    truncate = 'parameters { key: "truncate" value { string_value: "true" } }\n'
    (folder / "config.pbtxt").write_text(cascade_config_pbtxt(manifest) + truncate)
    return Probe(routes)


def _candidate(number: int, route: ProbeRoute) -> Candidate:
    """Return the candidate of a route; score and latency rise with its number, so an accuracy selects exactly one."""
    count = len(route.levels)
    several = count > 1
    expected = Expected(
        score=(number + 1) * _SCORE_STEP, latency=_latency(number + 1), returned=(*(0.0,) * (count - 1), 1.0), pruned=0
    )
    return Candidate(
        name=str(number),
        levels=route.levels,
        cutoff=_ALWAYS_REROUTED if several else None,
        slope=1.0 if several else None,
        pruning=_PRUNES_NOTHING if route.pruned else None,
        weights=tuple((1 / size,) * size for size in range(1, count + 1)),
        selection=expected,
        reported=expected,
    )


def _latency(ms: float) -> Latency:
    return Latency(mean=ms, p25=ms, p50=ms, p75=ms, p99=ms)
