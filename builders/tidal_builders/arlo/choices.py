"""Choices that are made by measuring on the device: precision, lengths, and static or dynamic runtimes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeVar

import numpy as np
from pydantic import BaseModel

from tidal.arlo.manifest import Form, Placement, Trial
from tidal.engines import Engine, engine_entry
from tidal_builders.arlo.ladder import Ladder
from tidal_builders.arlo.length_distribution import LengthDistribution
from tidal_builders.arlo.opened import Compiled, Opened, open_form
from tidal_builders.arlo.reference import Facts
from tidal_builders.arlo.runtime_lengths import MAX_RUNTIMES, optimal_lengths, static_part
from tidal_builders.arlo.spec import ArloSpec
from tidal_builders.arlo.workers import Workers
from tidal_builders.samples import Batch, synthetic
from tidal_builders.timing import Call, Progress, measure

Name = TypeVar("Name", bound=str)

# Number of lengths at which alternatives are compared.
_COMPARED = 12
# Maximum number of lengths that are compared where each needs a plan of its own.
_PLANNED = 16
# An alternative that costs memory or precision is chosen only if it is faster by this share.
MIN_GAIN = 0.03
_TOKEN = 1
# Time for which a point of a latency curve is measured, at most, and its least number of calls.
_POINT_S = 0.03
_POINT_CALLS = 3


class Curve(BaseModel):
    """Latency of a single query over a fine grid of lengths.

    Attributes:
        lengths: Grid of lengths in tokens, ascending.
        static_ms: Latency of a static runtime of each length in milliseconds, if measured.
        dynamic_ms: Latency of the dynamic runtime at each length in milliseconds.
    """

    lengths: tuple[int, ...]
    static_ms: tuple[float, ...] | None
    dynamic_ms: tuple[float, ...]


class Ladders(BaseModel):
    """Lengths that runtimes may have.

    Attributes:
        candidates: Ladders to compare, one per form, the one with the fewest engines first.
        curve: Latency curve that they were chosen by; None if the spec names the lengths.
    """

    candidates: tuple[Ladder, ...]
    curve: Curve | None


class LadderChoice(BaseModel):
    """The chosen lengths and form.

    Attributes:
        ladder: Lengths of the runtimes, and which are static.
        trials: Forms that were compared; empty if the spec names the form.
    """

    ladder: Ladder
    trials: tuple[Trial, ...]


def mean_latencies(
    candidates: Mapping[Name, Opened], facts: Facts, distribution: LengthDistribution, progress: Progress
) -> dict[Name, float]:
    """Mean latency of a single query over the expected lengths.

    One length is drawn from each twelfth of the distribution: at the lengths of the runtimes themselves, static shapes
    would look better than they are.

    Args:
        candidates: Opened engines by name.
        facts: Properties of the source model.
        distribution: Distribution of the lengths.
        progress: Called with the completed share, 0 to 1.

    Returns:
        Mean of the median latencies in milliseconds by name.
    """
    lengths = distribution.spread(_COMPARED)
    calls: dict[tuple[Name, int], Call] = {}
    for name, opened in candidates.items():
        for length in lengths:
            batch = synthetic(facts.input_names, 1, opened.padded_length(length), _TOKEN)
            calls[name, length] = _call(opened, batch)
    timings = measure(calls, pause_s=0.02, budget_s=30, progress=progress)
    return {name: float(np.mean([timings[name, length].median_ms for length in lengths])) for name in candidates}


def candidate_ladders(
    compiled: Compiled,
    facts: Facts,
    distribution: LengthDistribution,
    spec: ArloSpec,
    workers: Workers,
    progress: Progress,
) -> Ladders:
    """The ladders of each form that the spec allows: with its lengths, or those with the least mean latency.

    The mean is over the expected lengths; see `optimal_lengths` (Arlo, Section 3.3) and `static_part`.
    """
    form: Form | Literal["auto"] = "static" if spec.placement == "partitioned" else spec.form
    if spec.lengths != "auto":
        uptos = {"dynamic": (0,), "static": (spec.lengths[-1],), "auto": (0, spec.lengths[-1])}[form]
        return Ladders(candidates=tuple(Ladder(lengths=spec.lengths, static_upto=upto) for upto in uptos), curve=None)
    curve = _measure_curve(compiled, facts, distribution, spec, workers, progress)
    grid, shares = curve.lengths, distribution.within(curve.lengths).tolist()
    found = []
    if form != "static":
        found.append(Ladder(lengths=tuple(optimal_lengths(grid, curve.dynamic_ms, shares)), static_upto=0))
    if curve.static_ms is not None and form != "dynamic":
        if form == "auto":
            found += _mixed(curve, shares)
        static = optimal_lengths(grid, curve.static_ms, shares)
        found.append(Ladder(lengths=tuple(static), static_upto=static[-1]))
    return Ladders(candidates=tuple(found), curve=curve)


def _mixed(curve: Curve, shares: Sequence[float]) -> list[Ladder]:
    """The ladder of static runtimes for short inputs and a dynamic one for longer ones, if both gain."""
    assert curve.static_ms is not None
    grid = curve.lengths
    static = static_part(grid, curve.static_ms, curve.dynamic_ms, shares)
    rest = grid.index(static[-1]) + 1 if static else len(grid)
    if rest == len(grid):
        return []
    most = max(1, MAX_RUNTIMES - len(static))
    longer = optimal_lengths(grid[rest:], curve.dynamic_ms[rest:], shares[rest:], most)
    return [Ladder(lengths=(*static, *longer), static_upto=static[-1])]


def _measure_curve(
    compiled: Compiled,
    facts: Facts,
    distribution: LengthDistribution,
    spec: ArloSpec,
    workers: Workers,
    progress: Progress,
) -> Curve:
    # A plan takes up to minutes to build.
    most = _PLANNED if engine_entry(spec.engine).uses_plans and spec.form != "dynamic" else None
    grid = distribution.grid(8 * -(-facts.max_length // 512), most)
    share = 1.0 if spec.form == "dynamic" else 0.3
    ((engine, *_),) = compiled.open([(1, facts.max_length)], workers)
    dynamic_ms = _curve(lambda _: engine, facts, grid, lambda done: progress(share * done))
    static_ms = None
    if spec.form != "dynamic":
        # Opened one at a time, because each has a copy of the weights.
        static_ms = _curve(
            lambda length: compiled.open([length], workers)[0][0],
            facts,
            grid,
            lambda done: progress(share + (1 - share) * done),
        )
    return Curve(lengths=tuple(grid), static_ms=static_ms, dynamic_ms=dynamic_ms)


def choose_ladder(
    compiled: Compiled,
    facts: Facts,
    candidates: Sequence[Ladder],
    distribution: LengthDistribution,
    workers: Workers,
    progress: Progress,
) -> LadderChoice:
    """The first of the candidates within `MIN_GAIN` of the fastest."""
    if len(candidates) == 1:
        return LadderChoice(ladder=candidates[0], trials=())
    forms = {each.form: each for each in candidates}
    opened = {form: open_form(compiled, each, workers) for form, each in forms.items()}
    means = mean_latencies(opened, facts, distribution, progress)
    fastest = min(means.values())
    chosen = next(form for form in forms if means[form] * (1 - MIN_GAIN) <= fastest)
    trials = tuple(
        Trial(
            precision=compiled.precision,
            form=form,
            choice="form",
            mean_ms=means[form],
            max_abs_error=None,
            verdict="chosen" if form == chosen else "slower",
        )
        for form in forms
    )
    return LadderChoice(ladder=forms[chosen], trials=trials)


def choose_placement(spec: ArloSpec, form: Form, devices: int) -> Placement:
    """The placement that the spec names; for `auto`, partitioned if static runtimes run on several devices.

    On one device, engines in one process share all of it: no instance is idle while another's queue is full, and each
    query runs at the length that fits it. On several devices each has engines of its own, and a device with one
    runtime needs less memory than one with all of them.

    Args:
        spec: Spec of the classifier.
        form: Form of the runtimes.
        devices: Number of devices.
    """
    if spec.placement != "auto":
        return spec.placement
    return "partitioned" if devices > 1 and form == "static" else "polymorphic"


def _call(opened: Opened, batch: Batch) -> Call:
    return lambda worker: opened.run(batch, worker)


def _curve(
    engine_of: Callable[[int], Engine], facts: Facts, grid: Sequence[int], progress: Progress
) -> tuple[float, ...]:
    """Latency of a single query at every length of the grid, in milliseconds.

    Lengths are measured in two rounds of different order; the smaller median is the one with less other load.
    """
    best = dict.fromkeys(grid, float("inf"))
    order = list(grid)
    for round_number in range(2):
        random.Random(round_number).shuffle(order)
        for done, length in enumerate(order):
            engine = engine_of(length)
            batch = synthetic(facts.input_names, 1, length, _TOKEN)
            engine.run(batch)
            times: list[float] = []
            until = time.perf_counter() + _POINT_S
            while len(times) < _POINT_CALLS or (time.perf_counter() < until and len(times) < 50):
                begin = time.perf_counter()
                engine.run(batch)
                times.append((time.perf_counter() - begin) * 1e3)
            best[length] = min(best[length], float(np.median(times)))
            progress((round_number + (done + 1) / len(order)) / 2)
    return tuple(best[length] for length in grid)
