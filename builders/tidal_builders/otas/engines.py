"""Graphs of a vision transformer by γ, and which engines to open from them on this machine."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from tidal.engines import (
    Artifact,
    Engine,
    EngineKind,
    Precision,
    compile_engine,
    engine_entry,
    engine_file,
    open_engines,
    specialise_engine,
)
from tidal.otas.manifest import PIXELS, PROMPTS, OtasEngine, OtasForm, OtasTrial, Way
from tidal.otas.runner import split
from tidal_builders.otas.target import Target
from tidal_builders.otas.transformer import GammaModule, TransformerModel
from tidal_builders.timing import Call, Progress, measure

PRECISION: Precision = "fp32"
Inputs = dict[str, npt.NDArray[np.float32]]

# Engines of fixed sizes are copies of the weights: they have to gain this share of the time.
_LEAST_GAIN = 0.05
_ROUNDS = 4
# Batches are compared up to this many times the largest fixed size.
_LARGEST_TRIED = 4


def graphs(gammas: Sequence[int], kind: EngineKind) -> dict[tuple[int, ...], str]:
    """The graphs that a γ list asks for, with their folders' names.

    Merging is part of a graph, so that each γ below 0 has one. Prompts are an input: one graph accepts any number,
    unless the engine uses plans, which are fastest for fixed sizes.
    """
    prompted = tuple(gamma for gamma in gammas if gamma > 0)
    found: dict[tuple[int, ...], str]
    found = {(gamma,): f"merge{-gamma}" if gamma < 0 else "plain" for gamma in gammas if gamma <= 0}
    if engine_entry(kind).uses_plans:
        return found | {(gamma,): f"prompts{gamma}" for gamma in prompted}
    return found | ({prompted: "prompts"} if prompted else {})


def convert(model: TransformerModel, form: OtasForm, gammas: tuple[int, ...], folder: Path, kind: EngineKind) -> None:
    """Write one of the graphs into an existing folder."""
    compile_engine(
        kind,
        GammaModule(model, gammas[-1]),
        folder,
        precision=PRECISION,
        shapes=form.shapes(gammas, None),
        example=draw_inputs(form, gammas[-1], images=min(2, form.max_batch), seed=0),
    )


def batch_sizes(max_batch: int) -> tuple[int, ...]:
    """Numbers of images to measure: 1 to `max_batch` in doubling steps."""
    return tuple(sorted({max_batch, *(2**power for power in range(max_batch.bit_length()) if 2**power <= max_batch)}))


def draw_inputs(form: OtasForm, gamma: int, images: int, seed: int) -> Inputs:
    """Random pixel values, and prompts where γ asks for them."""
    draw = np.random.default_rng(seed)
    inputs = {PIXELS: draw.standard_normal((images, *form.image.shape), np.float32)}
    if shape := form.prompt_shape(gamma):
        inputs[PROMPTS] = draw.standard_normal((images, *shape), np.float32)
    return inputs


def choose_engines(
    folder: Path, form: OtasForm, target: Target, *, static_batches: Sequence[int], seconds: float, progress: Progress
) -> tuple[tuple[OtasEngine, ...], tuple[OtasTrial, ...]]:
    """The engines that run each graph fastest: one for all batch sizes, one for each of some sizes, or both.

    Args:
        folder: with a folder of each graph; they get what is made for fixed sizes.
        form: of the model.
        target: what engines are made for.
        static_batches: sizes to try for γ up to 0, ascending; those above the form's `max_batch` are left out.
        seconds: no round beyond the second begins after so many, for each γ.
        progress: told the share that is done.
    """
    sizes = [size for size in static_batches if size <= form.max_batch]
    engines: list[OtasEngine] = []
    trials: list[OtasTrial] = []
    wanted = graphs(form.gammas, target.kind)
    for number, (gammas, name) in enumerate(wanted.items()):
        graph = folder / name / engine_file(target.kind)
        tried = [None, *(sizes if gammas[0] <= 0 else [])]
        files = specialise_engine(target.kind, graph, [form.shapes(gammas, size) for size in tried], target.options)
        anything, *fixed = [
            OtasEngine(gammas=gammas, file=str(file.relative_to(folder)), batch=size)
            for file, size in zip(files, tried, strict=True)
        ]
        ways: dict[Way, Sequence[OtasEngine]] = {"dynamic": [anything]}
        if fixed:
            ways |= {"static": fixed, "both": [*fixed, anything]}
        chosen: Way = "dynamic"
        if fixed:
            image_ms = _compare(folder, form, target, anything, fixed, seconds)
            fastest = min(image_ms, key=lambda way: image_ms[way])
            if image_ms[fastest] < image_ms["dynamic"] * (1 - _LEAST_GAIN):
                chosen = fastest
            for way, milliseconds in image_ms.items():
                verdict: Literal["chosen", "slower"] = "chosen" if way == chosen else "slower"
                trials.append(OtasTrial(gamma=gammas[0], form=way, image_ms=milliseconds, verdict=verdict))
        engines += ways[chosen]
        progress((number + 1) / len(wanted))
    return tuple(engines), tuple(trials)


def open_one(folder: Path, form: OtasForm, target: Target, engine: OtasEngine) -> Engine:
    """An engine of a model that is not published yet."""
    shapes = form.shapes(engine.gammas, engine.batch)
    artifact = Artifact(target.kind, folder / engine.file, PRECISION, shapes, target.device)
    return open_engines(artifact, threads=target.threads)[0]


def _compare(
    folder: Path, form: OtasForm, target: Target, anything: OtasEngine, fixed: Sequence[OtasEngine], seconds: float
) -> dict[Way, float]:
    """Milliseconds an image of each way to divide batches among engines, a mean over batch sizes."""
    gamma, sizes = anything.gammas[0], [each.batch or 1 for each in fixed]
    batches = batch_sizes(min(form.max_batch, _LARGEST_TRIED * sizes[-1]))
    dynamic = open_one(folder, form, target, anything)
    calls: dict[tuple[bool, int], Call] = {}
    for each, size in zip(fixed, sizes, strict=True):
        calls[True, size] = partial(_run, open_one(folder, form, target, each), draw_inputs(form, gamma, size, seed=0))
    for size in batches:
        calls[False, size] = partial(_run, dynamic, draw_inputs(form, gamma, size, seed=0))
    timings = {key: timing.median_ms for key, timing in measure(calls, rounds=_ROUNDS, budget_s=seconds).items()}
    costs: dict[Way, Callable[[int], float]] = {
        "dynamic": lambda size: timings[False, size],
        "static": lambda size: sum(timings[True, part] for part in split(size, sizes)),
        "both": lambda size: timings[size in sizes, size],
    }
    return {way: statistics.mean(cost(size) / size for size in batches) for way, cost in costs.items()}


def _run(engine: Engine, inputs: Inputs, _worker: int) -> None:
    engine.run(inputs)
