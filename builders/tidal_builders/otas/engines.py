"""Graphs of a vision transformer by γ, and the choice of engines for this machine."""

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
from tidal.otas.manifest import PIXELS, PROMPTS, EngineChoice, OtasEngine, OtasForm, OtasTrial
from tidal.otas.runner import split_batch
from tidal_builders.otas.target import Target
from tidal_builders.otas.transformer import GammaModule, TransformerModel
from tidal_builders.timing import Call, Progress, measure

PRECISION: Precision = "fp32"
Inputs = dict[str, npt.NDArray[np.float32]]

# Engines of fixed sizes need a copy of the weights each: they have to save at least this share of the time.
_MIN_GAIN = 0.05
_ROUNDS = 4
# Batch sizes are compared up to this multiple of the largest fixed size.
_MAX_SIZE_FACTOR = 4


def graphs(gammas: Sequence[int], kind: EngineKind) -> dict[tuple[int, ...], str]:
    """Return the graphs that a γ list requires, with the names of their folders.

    Merging is part of a graph, so each γ below 0 has its own. Prompts are an input, so one graph serves all γ above 0,
    unless the engine uses plans, which are fastest for fixed sizes.

    Args:
        gammas: List of γ, ascending.
        kind: Kind of the engines.
    """
    prompted = tuple(gamma for gamma in gammas if gamma > 0)
    found: dict[tuple[int, ...], str]
    found = {(gamma,): f"merge{-gamma}" if gamma < 0 else "plain" for gamma in gammas if gamma <= 0}
    if engine_entry(kind).uses_plans:
        return found | {(gamma,): f"prompts{gamma}" for gamma in prompted}
    return found | ({prompted: "prompts"} if prompted else {})


def convert(model: TransformerModel, form: OtasForm, gammas: tuple[int, ...], folder: Path, kind: EngineKind) -> None:
    """Compile one of the graphs into an existing folder.

    Args:
        model: The transformer.
        form: Shapes of the model.
        gammas: γ of the graph, ascending.
        folder: Folder to write to.
        kind: Kind of the engine.
    """
    compile_engine(
        kind,
        GammaModule(model, gammas[-1]),
        folder,
        precision=PRECISION,
        shapes=form.shapes(gammas, None),
        example=draw_inputs(form, gammas[-1], images=min(2, form.max_batch), seed=0),
    )


def batch_sizes(max_batch: int) -> tuple[int, ...]:
    """Return the batch sizes to measure: powers of 2 up to `max_batch`, and `max_batch`."""
    return tuple(sorted({max_batch, *(2**power for power in range(max_batch.bit_length()) if 2**power <= max_batch)}))


def draw_inputs(form: OtasForm, gamma: int, images: int, seed: int) -> Inputs:
    """Draw random pixel values of a number of images, and prompts if γ is above 0."""
    draw = np.random.default_rng(seed)
    inputs = {PIXELS: draw.standard_normal((images, *form.image.shape), np.float32)}
    if shape := form.prompt_shape(gamma):
        inputs[PROMPTS] = draw.standard_normal((images, *shape), np.float32)
    return inputs


def choose_engines(
    folder: Path, form: OtasForm, target: Target, *, static_batches: Sequence[int], seconds: float, progress: Progress
) -> tuple[tuple[OtasEngine, ...], tuple[OtasTrial, ...]]:
    """Choose the fastest engines of each graph: one for all batch sizes, engines for some sizes each, or both.

    Args:
        folder: Folder that contains the folders of the graphs; files for fixed sizes are added to these.
        form: Shapes of the model.
        target: Device and options of the engines.
        static_batches: Batch sizes to try for γ up to 0, ascending; sizes above `max_batch` are left out.
        seconds: Time limit for rounds after the second, per γ, in seconds.
        progress: Called with the share that is done.

    Returns:
        The chosen engines, and the measurements of all choices.
    """
    sizes = [size for size in static_batches if size <= form.max_batch]
    engines: list[OtasEngine] = []
    trials: list[OtasTrial] = []
    wanted = graphs(form.gammas, target.kind)
    for number, (gammas, name) in enumerate(wanted.items()):
        graph = folder / name / engine_file(target.kind)
        candidates = [None, *(sizes if gammas[0] <= 0 else [])]
        shapes = [form.shapes(gammas, size) for size in candidates]
        files = specialise_engine(target.kind, graph, shapes, target.options)
        any_size, *fixed = [
            OtasEngine(gammas=gammas, file=str(file.relative_to(folder)), batch=size)
            for file, size in zip(files, candidates, strict=True)
        ]
        choices: dict[EngineChoice, Sequence[OtasEngine]] = {"dynamic": [any_size]}
        if fixed:
            choices |= {"static": fixed, "both": [*fixed, any_size]}
        chosen: EngineChoice = "dynamic"
        if fixed:
            image_ms = _compare(folder, form, target, any_size, fixed, seconds)
            fastest = min(image_ms, key=lambda choice: image_ms[choice])
            if image_ms[fastest] < image_ms["dynamic"] * (1 - _MIN_GAIN):
                chosen = fastest
            for choice, milliseconds in image_ms.items():
                verdict: Literal["chosen", "slower"] = "chosen" if choice == chosen else "slower"
                trials.append(OtasTrial(gamma=gammas[0], form=choice, image_ms=milliseconds, verdict=verdict))
        engines += choices[chosen]
        progress((number + 1) / len(wanted))
    return tuple(engines), tuple(trials)


def open_one(folder: Path, form: OtasForm, target: Target, engine: OtasEngine) -> Engine:
    """Open an engine of a model that has not been published."""
    shapes = form.shapes(engine.gammas, engine.batch)
    artifact = Artifact(target.kind, folder / engine.file, PRECISION, shapes, target.device)
    return open_engines(artifact, threads=target.threads)[0]


def _compare(
    folder: Path, form: OtasForm, target: Target, any_size: OtasEngine, fixed: Sequence[OtasEngine], seconds: float
) -> dict[EngineChoice, float]:
    """Return the milliseconds per image of each choice of engines, a mean over batch sizes."""
    gamma, sizes = any_size.gammas[0], [each.batch or 1 for each in fixed]
    batches = batch_sizes(min(form.max_batch, _MAX_SIZE_FACTOR * sizes[-1]))
    dynamic = open_one(folder, form, target, any_size)
    calls: dict[tuple[bool, int], Call] = {}
    for each, size in zip(fixed, sizes, strict=True):
        calls[True, size] = partial(_run, open_one(folder, form, target, each), draw_inputs(form, gamma, size, seed=0))
    for size in batches:
        calls[False, size] = partial(_run, dynamic, draw_inputs(form, gamma, size, seed=0))
    timings = {key: timing.median_ms for key, timing in measure(calls, rounds=_ROUNDS, budget_s=seconds).items()}
    costs: dict[EngineChoice, Callable[[int], float]] = {
        "dynamic": lambda size: timings[False, size],
        "static": lambda size: sum(timings[True, part] for part in split_batch(size, sizes)),
        "both": lambda size: timings[size in sizes, size],
    }
    return {choice: statistics.mean(cost(size) / size for size in batches) for choice, cost in costs.items()}


def _run(engine: Engine, inputs: Inputs, _worker: int) -> None:
    engine.run(inputs)
