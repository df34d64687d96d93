"""Measure the latency of batches by γ and number of images on this machine (OTAS §III-A)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tidal.otas.manifest import PIXELS, PROMPTS, OtasForm
from tidal.otas.profile import GammaLatency
from tidal.otas.runner import OtasRunner
from tidal_builders.otas.engines import Inputs, batch_sizes, draw_inputs
from tidal_builders.otas.gammas import image_bytes
from tidal_builders.otas.vit import VitConfig
from tidal_builders.timing import Call, Progress, measure

_ROUNDS = 4


def measure_profile(
    runner: OtasRunner, form: OtasForm, config: VitConfig, *, threads: int, seconds: float, progress: Progress
) -> GammaLatency:
    """Measure every γ and batch size in the same rounds.

    Args:
        runner: Runner of the engines that will serve.
        form: Shapes of the model.
        config: Configuration of the transformer.
        threads: Number of CPU threads of an engine.
        seconds: Time limit for rounds after the second, in seconds.
        progress: Called with the share that is done.
    """
    sizes = batch_sizes(form.max_batch)
    calls: dict[tuple[int, int], Call] = {}
    for gamma in form.gammas:
        inputs = draw_inputs(form, gamma, form.max_batch, seed=0)
        for size in sizes:
            calls[gamma, size] = partial(_run, runner, gamma, {name: array[:size] for name, array in inputs.items()})
    timings = measure(calls, rounds=_ROUNDS, budget_s=seconds, progress=progress)

    def rows(name: str) -> tuple[tuple[float, ...], ...]:
        return tuple(_monotonic([getattr(timings[gamma, size], name) for size in sizes]) for gamma in form.gammas)

    return GammaLatency(
        gammas=form.gammas,
        batches=sizes,
        median_ms=rows("median_ms"),
        p95_ms=rows("p95_ms"),
        image_bytes=tuple(image_bytes(config, gamma, accumulate=form.accumulate) for gamma in form.gammas),
        threads=threads,
    )


def _run(runner: OtasRunner, gamma: int, inputs: Inputs, _worker: int) -> None:
    runner.run(gamma, inputs[PIXELS], inputs.get(PROMPTS))


def _monotonic(values: Sequence[float]) -> tuple[float, ...]:
    """Limit each value to the next one: if a larger batch was faster, the smaller one was disturbed."""
    evened = list(values)
    for place in range(len(evened) - 2, -1, -1):
        evened[place] = min(evened[place], evened[place + 1])
    return tuple(evened)
