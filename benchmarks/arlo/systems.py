"""The compared systems, and their entries in the model repository."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.arlo.prepare import PARTITIONED as PARTITIONED_MODEL
from benchmarks.arlo.prepare import POLYMORPHIC as POLYMORPHIC_MODEL
from benchmarks.arlo.prepare import ArloArtefacts
from benchmarks.arlo.workload import LONGEST, Pattern
from benchmarks.serving_path.throughput import BareConfig
from tidal.repository.allocation import make_allocation, write_allocation

ST = "ST"
DT = "DT"
DT_BATCHED = "DT batched"
BIN_PACKING = "INFaaS-like"
PARTITIONED = "Arlo partitioned"
POLYMORPHIC = "Tidal polymorphic"
BASELINES = (ST, DT, DT_BATCHED)
BIN_PACKING_MODEL = "intents_bins"


@dataclass(frozen=True, slots=True)
class ArloCase:
    """A load to measure.

    Attributes:
        base: System whose capacity the load is a share of.
        percent: Load in percent of that capacity.
        pattern: Arrival pattern.
    """

    base: str
    percent: int
    pattern: Pattern

    def __str__(self) -> str:
        return f"{self.percent} % of {self.base}, {self.pattern}"


@dataclass(frozen=True, slots=True)
class PlannedCase:
    """A load, the systems measured at it, and the number of requests per system and round."""

    case: ArloCase
    systems: tuple[str, ...]
    requests: int


_DT_SYSTEMS = (DT, DT_BATCHED, BIN_PACKING, PARTITIONED, POLYMORPHIC)
_PATTERNS: tuple[Pattern, ...] = ("poisson", "bursty")


def plan(*, quick: bool) -> list[PlannedCase]:
    """Return all loads of a round."""
    dt = (DT, DT_BATCHED, POLYMORPHIC)
    if quick:
        return [
            PlannedCase(ArloCase(ST, 40, "poisson"), (ST, POLYMORPHIC), 24),
            PlannedCase(ArloCase(ST, 70, "poisson"), (ST, BIN_PACKING, PARTITIONED, POLYMORPHIC), 24),
            *(PlannedCase(ArloCase(DT, percent, "poisson"), dt, 100) for percent in (40, 70, 90)),
        ]
    # ST is slow: each of its cells takes a minute. Other systems are compared with DT, which is harder to beat. The
    # capacity of two instances of one length each is below DT's loads, so the partitioned systems are compared with
    # ST at one load.
    return [
        PlannedCase(ArloCase(ST, 40, "poisson"), (ST, POLYMORPHIC), 600),
        PlannedCase(ArloCase(ST, 70, "poisson"), (ST, BIN_PACKING, PARTITIONED, POLYMORPHIC), 600),
        *(
            PlannedCase(ArloCase(DT, percent, pattern), _DT_SYSTEMS, 1000 if percent == 90 else 600)
            for pattern in _PATTERNS
            for percent in (40, 70, 90)
        ),
    ]


# Instances, threads and pinning for two cores. Instances of one thread may be bound to cores, as Arlo's are.
_SHAPES = ((1, 2, False), (2, 1, False), (2, 1, True), (2, 2, False))
_QUICK_SHAPES = ((1, 2, False), (2, 1, False))


def candidates(system: str, *, quick: bool) -> list[BareConfig]:
    """Return the configurations of a baseline to search."""
    shapes = _QUICK_SHAPES if quick else _SHAPES
    if system == ST:
        return [BareConfig(n, threads, 1, padded_length=LONGEST, pinned=pinned) for n, threads, pinned in shapes]
    if system == DT:
        return [BareConfig(n, threads, 1, pinned=pinned) for n, threads, pinned in shapes]
    sizes, delays = ((4,), (0,)) if quick else ((2, 4, 8), (0, 2000))
    return [
        BareConfig(n, threads, size, delay_us=delay)
        for n, threads, _ in _QUICK_SHAPES
        for size in sizes
        for delay in delays
    ]


def write_repository(
    repository: Path,
    artefacts: ArloArtefacts,
    baselines: Sequence[BareConfig],
    *,
    instances: dict[int, int],
    slo_ms: float,
    fill: float,
) -> None:
    """Copy the built models and add the others.

    Args:
        repository: Empty folder on the file system of the artefacts.
        artefacts: Built models.
        baselines: Bare models to add.
        instances: Number of instances of the partitioned model by length, which the INFaaS-like front uses, too.
        slo_ms: Latency objective of both in ms.
        fill: Bin size of the INFaaS-like front, as a share of the capacity within the SLO.
    """
    for folder in artefacts.repository.iterdir():
        if folder.is_dir():
            shutil.copytree(
                folder, repository / folder.name, ignore=shutil.ignore_patterns(".build"), copy_function=_link
            )
    front = repository / PARTITIONED_MODEL
    write_allocation(front, make_allocation(instances))
    config = with_parameters((front / "config.pbtxt").read_text(), {"slo_ms": slo_ms, "dispatch": "congestion"})
    (front / "config.pbtxt").write_text(config)
    bins = repository / BIN_PACKING_MODEL
    (bins / "1").mkdir(parents=True)
    config = config.replace(f'"{PARTITIONED_MODEL}"', f'"{BIN_PACKING_MODEL}"').replace('"arlo"', '"python"')
    (bins / "config.pbtxt").write_text(with_parameters(config, {"fill": fill, "front": PARTITIONED_MODEL}))
    here = Path(__file__).parent
    shutil.copy(here / "bin_packing_model.py", bins / "1" / "model.py")
    shutil.copy(here / "bin_packing.py", bins / "1" / "bin_packing.py")
    for config_of in baselines:
        config_of.write(repository, repository / POLYMORPHIC_MODEL / artefacts.version(POLYMORPHIC_MODEL).name)


def _link(source: str, target: str) -> None:
    """Link engine files, which are large, and copy other files, which may be edited."""
    if "engines" in Path(source).parts:
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def with_parameters(config: str, parameters: dict[str, object]) -> str:
    """Return a config.pbtxt with parameters added or replaced."""
    lines = [line for line in config.splitlines() if not any(f'key: "{key}"' in line for key in parameters)]
    lines += [f'parameters {{ key: "{key}" value: {{ string_value: "{v}" }} }}' for key, v in parameters.items()]
    return "\n".join(lines) + "\n"
