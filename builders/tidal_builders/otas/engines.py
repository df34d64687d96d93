"""Converts a vision transformer into graphs by γ, and chooses the engines to open from them on this machine."""

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
from tidal_builders.otas.target import EngineTarget
from tidal_builders.otas.transformer import GammaModule, TransformerModel
from tidal_builders.timing import Call, Progress, measure

PRECISION: Precision = "fp32"
Inputs = dict[str, npt.NDArray[np.float32]]

# Engines of fixed sizes are copies of the weights: they must be faster by this share.
_MIN_GAIN = 0.05
_ROUNDS = 4
# Batches are compared up to this multiple of the largest fixed size.
_MAX_SIZE_FACTOR = 4


def graphs(gammas: Sequence[int], kind: EngineKind) -> dict[tuple[int, ...], str]:
    """The graphs that some γ values need, with the names of their folders.

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
    """Compile one graph into an existing folder.

    Args:
        model: The vision transformer.
        form: Shapes and γ values of its batches.
        gammas: γ values of the graph.
        folder: Folder to write into.
        kind: Engine kind to compile for.
    """
    compile_engine(
        kind,
        GammaModule(model, gammas[-1], scatter=not engine_entry(kind).uses_plans),
        folder,
        precision=PRECISION,
        shapes=form.shapes(gammas, None),
        example=draw_inputs(form, gammas[-1], images=min(2, form.max_batch), seed=0),
    )


def batch_sizes(max_batch: int) -> tuple[int, ...]:
    """Numbers of images to measure: powers of 2 up to `max_batch`, and `max_batch`."""
    return tuple(sorted({max_batch, *(2**power for power in range(max_batch.bit_length()) if 2**power <= max_batch)}))


def draw_inputs(form: OtasForm, gamma: int, images: int, seed: int) -> Inputs:
    """Draw random pixel values, and prompts if γ has any.

    Args:
        form: Shapes of batches.
        gamma: Change of the number of tokens per layer.
        images: Number of images.
        seed: Seed of the random numbers.
    """
    draw = np.random.default_rng(seed)
    inputs = {PIXELS: draw.standard_normal((images, *form.image.shape), np.float32)}
    if shape := form.prompt_shape(gamma):
        inputs[PROMPTS] = draw.standard_normal((images, *shape), np.float32)
    return inputs


def choose_engines(
    folder: Path,
    form: OtasForm,
    target: EngineTarget,
    *,
    static_batches: Sequence[int],
    seconds: float,
    progress: Progress,
) -> tuple[tuple[OtasEngine, ...], tuple[OtasTrial, ...]]:
    """Choose the engines that run each graph fastest: one for all batch sizes, one for each of some sizes, or both.

    Args:
        folder: Folder with one folder per graph, into which plans for fixed sizes are written.
        form: Shapes and γ values of batches.
        target: Device and engine to build for.
        static_batches: Batch sizes to try for γ up to 0, ascending; those above the form's `max_batch` are ignored.
        seconds: Time in seconds after which no further round starts, per γ; two rounds are always run.
        progress: Called with the completed share, 0 to 1.

    Returns:
        The engines, and the forms that were compared.
    """
    sizes = [size for size in static_batches if size <= form.max_batch]
    engines: list[OtasEngine] = []
    trials: list[OtasTrial] = []
    wanted = graphs(form.gammas, target.kind)
    for number, (gammas, name) in enumerate(wanted.items()):
        graph = folder / name / engine_file(target.kind)
        candidates = [None, *(sizes if gammas[0] <= 0 else [])]
        files = specialise_engine(
            target.kind, graph, [form.shapes(gammas, size) for size in candidates], target.options
        )
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


def open_one(folder: Path, form: OtasForm, target: EngineTarget, engine: OtasEngine) -> Engine:
    """Open one engine of a model that is not yet published.

    Args:
        folder: Folder with one folder per graph.
        form: Shapes and γ values of batches.
        target: Device and engine to build for.
        engine: The engine to open.
    """
    shapes = form.shapes(engine.gammas, engine.batch)
    artifact = Artifact(target.kind, folder / engine.file, PRECISION, shapes, target.device)
    return open_engines(artifact, threads=target.threads)[0]


def _compare(
    folder: Path,
    form: OtasForm,
    target: EngineTarget,
    any_size: OtasEngine,
    fixed: Sequence[OtasEngine],
    seconds: float,
) -> dict[EngineChoice, float]:
    """Milliseconds per image for each way to divide batches among engines, as a mean over batch sizes."""
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
