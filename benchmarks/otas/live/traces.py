"""Rates of the live loads by second, committed in `traces.json`.

`python -m benchmarks.otas.live.traces` draws them and writes the file again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tidal.simulator.otas import fluctuating

FILE = Path(__file__).with_name("traces.json")
#: Minimum, mean and maximum rate of a trace at a load of 1, in shares of the throughput at γ 0. The paper has 200, 350
#: and 700 queries a second, where Table I sustains about 380 with γ 0 and Figure 4 has 580.
LEAST, MEAN, MOST = 0.5, 0.75, 1.7
#: Factors on these rates: means of 0.75 to 1.35 times the throughput at γ 0.
LOADS = (1.0, 1.2, 1.4, 1.6, 1.8)
#: Durations in seconds: of a measured trace, of one on which fixed γ are chosen, and of one rate on average.
MEASURED_S, TUNING_S, HELD_S = 120, 30, 2.0
# Added to 100 times the load, it is the seed of a trace.
_MEASURED_SEED, _TUNING_SEED = 0, 1000
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class LoadTrace:
    """Rates of one load.

    Attributes:
        seed: Seed that they were drawn with.
        rates: Rate in each second, in shares of the throughput at γ 0.
    """

    seed: int
    rates: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LiveTraces:
    """Traces by load: `measured`, and others of the same kind on which fixed γ are chosen (`tuning`)."""

    measured: Mapping[float, LoadTrace]
    tuning: Mapping[float, LoadTrace]


def draw() -> LiveTraces:
    """Draw all traces."""
    return LiveTraces(
        {load: _draw(load, MEASURED_S, _MEASURED_SEED) for load in LOADS},
        {load: _draw(load, TUNING_S, _TUNING_SEED) for load in LOADS},
    )


def read(file: Path = FILE) -> LiveTraces:
    """Read the committed traces."""
    found = json.loads(file.read_text())
    return LiveTraces(*(_read(found[part]) for part in ("measured", "tuning")))


def write(traces: LiveTraces, file: Path = FILE) -> None:
    """Write traces, each on a line of its own, after a description."""
    drawn = (
        f"rates by second in shares of the throughput at gamma 0: each held for {HELD_S:g} s on average, "
        f"beta-distributed (benchmarks.otas.live.traces.shape), with minimum {LEAST}, mean {MEAN} and maximum {MOST} "
        "times the load"
    )
    parts = [f'"drawn": {json.dumps(drawn)}']
    for name, by_load in asdict(traces).items():
        lines = ",\n".join(f'  "{load}": {json.dumps(trace)}' for load, trace in by_load.items())
        parts.append(f'"{name}": {{\n{lines}\n }}')
    file.write_text("{\n " + ",\n ".join(parts) + "\n}\n")


def shape(seconds: int, seed: int) -> list[float]:
    """Draw rates by second with the minimum `LEAST`, the mean `MEAN` and the maximum `MOST`.

    Args:
        seconds: Number of rates, at least six.
        seed: Seed of the random numbers.
    """
    drawn = np.array(fluctuating(seconds, LEAST, MOST, MEAN, held_s=HELD_S, seed=seed))
    drawn = (drawn - drawn.min()) / (drawn.max() - drawn.min())
    share = (MEAN - LEAST) / (MOST - LEAST)
    # A power keeps 0 and 1 where they are; the one that gives the mean is found by halving.
    low, high = -8.0, 8.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (drawn ** np.exp(middle)).mean() > share else (low, middle)
    rates: list[float] = (LEAST + (MOST - LEAST) * drawn ** np.exp(high)).tolist()
    return rates


def _draw(load: float, seconds: int, first_seed: int) -> LoadTrace:
    seed = first_seed + round(100 * load)
    return LoadTrace(seed, tuple(round(load * rate, _DIGITS) for rate in shape(seconds, seed)))


def _read(by_load: Mapping[str, Any]) -> dict[float, LoadTrace]:
    return {float(load): LoadTrace(found["seed"], tuple(found["rates"])) for load, found in by_load.items()}


if __name__ == "__main__":
    write(draw())
    print(FILE)
