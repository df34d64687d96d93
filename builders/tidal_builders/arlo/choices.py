"""Choices that are made by measuring on the device: precision, lengths, and static or dynamic runtimes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeVar

import numpy as np
from pydantic import BaseModel

from tidal.arlo.manifest import Placement, Trial
from tidal.engines import Engine
from tidal_builders.arlo.opened import Compiled, Opened, open_form
from tidal_builders.arlo.reference import Facts
from tidal_builders.arlo.spec import ArloSpec
from tidal_builders.arlo.staircase import find_steps
from tidal_builders.arlo.workers import Workers
from tidal_builders.samples import Batch, synthetic
from tidal_builders.timing import Call, Progress, measure

Form = Literal["static", "dynamic"]
Name = TypeVar("Name", bound=str)

# Number of lengths at which alternatives are compared.
_COMPARED = 12
# An alternative that costs memory or precision is chosen only if it is faster by this share.
MIN_GAIN = 0.03
_TOKEN = 1


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


class Lengths(BaseModel):
    """The runtimes' lengths.

    Attributes:
        lengths: Lengths in tokens, ascending.
        curve: Latency curve that they were chosen by; None if the spec names them.
    """

    lengths: tuple[int, ...]
    curve: Curve | None


class FormChoice(BaseModel):
    """The chosen form.

    Attributes:
        form: `static` or `dynamic`.
        trials: Forms that were compared; empty if the spec names the form.
    """

    form: Form
    trials: tuple[Trial, ...]


def mean_latencies(candidates: Mapping[Name, Opened], facts: Facts, progress: Progress) -> dict[Name, float]:
    """Mean latency of a single query over many lengths.

    One length is drawn from each twelfth of the range: at the lengths of the runtimes themselves, static shapes would
    look better than they are.

    Args:
        candidates: Opened engines by name.
        facts: Properties of the source model.
        progress: Called with the completed share, 0 to 1.

    Returns:
        Mean of the median latencies in milliseconds by name.
    """
    spread = (np.arange(_COMPARED) + np.random.default_rng(0).random(_COMPARED)) / _COMPARED
    lengths = np.ceil(spread * facts.max_length).astype(int)
    calls: dict[tuple[Name, int], Call] = {}
    for name, opened in candidates.items():
        for length in lengths.tolist():
            batch = synthetic(facts.input_names, 1, opened.padded_length(length), _TOKEN)
            calls[name, length] = _call(opened, batch)
    timings = measure(calls, pause_s=0.02, budget_s=30, progress=progress)
    return {
        name: float(np.mean([timing.median_ms for (owner, _), timing in timings.items() if owner == name]))
        for name in candidates
    }


def choose_lengths(compiled: Compiled, facts: Facts, spec: ArloSpec, workers: Workers, progress: Progress) -> Lengths:
    """The spec's lengths, or the ends of the steps of the measured latency staircase (Arlo, Section 3.3)."""
    if spec.lengths != "auto":
        return Lengths(lengths=spec.lengths, curve=None)
    step = 8 * -(-facts.max_length // 512)
    grid = [*range(step, facts.max_length, step), facts.max_length]
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
    curve = Curve(lengths=tuple(grid), static_ms=static_ms, dynamic_ms=dynamic_ms)
    return Lengths(lengths=tuple(find_steps(grid, static_ms or dynamic_ms)), curve=curve)


def choose_form(
    compiled: Compiled, facts: Facts, lengths: Sequence[int], spec: ArloSpec, workers: Workers, progress: Progress
) -> FormChoice:
    """The form that the spec names, or the faster one."""
    if spec.placement == "partitioned":
        return FormChoice(form="static", trials=())
    if spec.form != "auto":
        return FormChoice(form=spec.form, trials=())
    forms: dict[Form, Opened] = {
        "dynamic": open_form(compiled, lengths, dynamic=True, workers=workers),
        "static": open_form(compiled, lengths, dynamic=False, workers=workers),
    }
    means = mean_latencies(forms, facts, progress)
    chosen: Form = "static" if means["static"] < (1 - MIN_GAIN) * means["dynamic"] else "dynamic"
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
    return FormChoice(form=chosen, trials=trials)


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
            until = time.perf_counter() + 0.03
            while len(times) < 3 or (time.perf_counter() < until and len(times) < 50):
                begin = time.perf_counter()
                engine.run(batch)
                times.append((time.perf_counter() - begin) * 1e3)
            best[length] = min(best[length], float(np.median(times)))
            progress((round_number + (done + 1) / len(order)) / 2)
    return tuple(best[length] for length in grid)
