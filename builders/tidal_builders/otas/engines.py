"""Graphs of a vision transformer by γ, and which engines to open from them on this machine."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tidal.engines import Artifact, Engine, EngineKind, Precision, compile_engine, engine_file, open_engines
from tidal.otas.manifest import ENGINE_FOLDER, PIXELS, PROMPTS, OtasEngine, OtasForm, OtasTrial
from tidal_builders.otas.transformer import GammaModule, TransformerModel
from tidal_builders.timing import Call, Progress, measure

KIND: EngineKind = "openvino"
PRECISION: Precision = "fp32"
Inputs = dict[str, npt.NDArray[np.float32]]

# Engines of fixed sizes are copies of the weights: they have to gain this share of the time.
_LEAST_GAIN = 0.05
_ROUNDS = 4


def graphs(gammas: Sequence[int]) -> dict[tuple[int, ...], str]:
    """The graphs that a γ list asks for, with their folders' names: one each for those up to 0, one for all above.

    Merging is part of a graph; prompts are an input of any number.
    """
    prompted = tuple(gamma for gamma in gammas if gamma > 0)
    found = {(gamma,): f"merge{-gamma}" if gamma < 0 else "plain" for gamma in gammas if gamma <= 0}
    return found | ({prompted: "prompts"} if prompted else {})


def convert(model: TransformerModel, form: OtasForm, gammas: tuple[int, ...], folder: Path) -> None:
    """Write one of the graphs into an existing folder."""
    shapes = form.shapes(gammas, None)
    compile_engine(
        KIND,
        GammaModule(model, gammas[0]),
        folder,
        precision=PRECISION,
        shapes=shapes,
        example=draw_inputs(form, gammas[0], images=2, seed=0),
    )


def draw_inputs(form: OtasForm, gamma: int, images: int, seed: int) -> Inputs:
    """Random pixel values, and prompts where γ asks for them."""
    draw = np.random.default_rng(seed)
    inputs = {PIXELS: draw.standard_normal((images, *form.image.shape), np.float32)}
    if shape := form.prompt_shape(gamma):
        inputs[PROMPTS] = draw.standard_normal((images, *shape), np.float32)
    return inputs


def choose_engines(
    folder: Path,
    form: OtasForm,
    *,
    static_batches: Sequence[int],
    threads: int,
    seconds: float,
    progress: Progress,
) -> tuple[tuple[OtasEngine, ...], tuple[OtasTrial, ...]]:
    """The engines that run each graph fastest: one for all batch sizes, or one for each of some sizes.

    Args:
        folder: with the graphs, each in `engines/<name>`.
        form: of the model.
        static_batches: sizes to try for γ up to 0, ascending; those above the form's `max_batch` are left out.
        threads: of an engine.
        seconds: no round beyond the second begins after so many, for each γ.
        progress: told the share that is done.
    """
    sizes = [size for size in static_batches if size <= form.max_batch]
    engines: list[OtasEngine] = []
    trials: list[OtasTrial] = []
    wanted = graphs(form.gammas)
    for number, (gammas, name) in enumerate(wanted.items()):
        file = f"{ENGINE_FOLDER}/{name}/{engine_file(KIND)}"
        fixed = [OtasEngine(gammas=gammas, file=file, batch=size) for size in sizes]
        anything = OtasEngine(gammas=gammas, file=file, batch=None)
        chosen = [anything]
        if fixed and gammas[0] <= 0:
            image_ms = _compare(folder, form, anything, fixed, threads, seconds)
            if image_ms["static"] < image_ms["dynamic"] * (1 - _LEAST_GAIN):
                chosen = fixed
            for form_name, milliseconds in image_ms.items():
                won = (form_name == "static") == (chosen is fixed)
                trials.append(
                    OtasTrial(
                        gamma=gammas[0],
                        form="static" if form_name == "static" else "dynamic",
                        image_ms=milliseconds,
                        verdict="chosen" if won else "slower",
                    )
                )
        engines += chosen
        progress((number + 1) / len(wanted))
    return tuple(engines), tuple(trials)


def open_one(folder: Path, form: OtasForm, engine: OtasEngine, threads: int) -> Engine:
    """An engine of a model that is not published yet."""
    shapes = form.shapes(engine.gammas, engine.batch)
    return open_engines(Artifact(KIND, folder / engine.file, PRECISION, shapes), threads=threads)[0]


def _compare(
    folder: Path,
    form: OtasForm,
    anything: OtasEngine,
    fixed: Sequence[OtasEngine],
    threads: int,
    seconds: float,
) -> Mapping[str, float]:
    """Milliseconds an image of both ways, a mean over the fixed sizes."""
    dynamic = open_one(folder, form, anything, threads)
    calls: dict[tuple[str, int], Call] = {}
    for each in fixed:
        size = each.batch or 1
        inputs = draw_inputs(form, each.gammas[0], size, seed=size)
        calls["static", size] = partial(_run, open_one(folder, form, each, threads), inputs)
        calls["dynamic", size] = partial(_run, dynamic, inputs)
    timings = measure(calls, rounds=_ROUNDS, budget_s=seconds)
    return {
        way: statistics.mean(timings[key].median_ms / key[1] for key in calls if key[0] == way)
        for way in ("dynamic", "static")
    }


def _run(engine: Engine, inputs: Inputs, _worker: int) -> None:
    engine.run(inputs)
