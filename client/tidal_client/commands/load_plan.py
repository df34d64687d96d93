"""The schedule that the options of `tidal load` ask for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import typer

from tidal_client.errors import InvalidArgument
from tidal_client.load.arrivals import Times, bursty, poisson, rescaled
from tidal_client.load.inputs import (
    Inputs,
    id_inputs,
    image_files,
    made_images,
    made_texts,
    prompt_inputs,
    read_texts,
    text_inputs,
)
from tidal_client.load.lengths import draw_lengths
from tidal_client.load.mix import Variant, parse_mix, read_mix
from tidal_client.load.run import Schedule
from tidal_client.load.traces import read_trace

_DEFAULT_SECONDS = 10.0
# Made inputs are all different up to this many, then used again.
_MOST_INPUTS = 20_000
_MOST_IMAGES = 200


class Arrivals(StrEnum):
    """How requests arrive."""

    POISSON = "poisson"
    BURSTY = "bursty"


class TraceUnit(StrEnum):
    """Unit of a trace's times."""

    S = "s"
    MS = "ms"
    US = "us"


_UNIT_S = {TraceUnit.S: 1.0, TraceUnit.MS: 1e-3, TraceUnit.US: 1e-6}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The options of `tidal load` that say what is sent and when; see its help."""

    rate: float | None
    seconds: float | None
    requests: int | None
    arrivals: Arrivals
    burst_factor: float
    burst_seconds: float
    burst_share: float
    trace: Path | None
    trace_column: str | None
    trace_count: str | None
    trace_unit: TraceUnit
    trace_start: float
    file: Path | None
    lengths: str | None
    tokenizer: Path | None
    ids: bool
    vocabulary: int
    mix: str
    seed: int
    images: Sequence[Path]
    image_size: str | None
    generate: bool


@contextmanager
def blame(option: str) -> Iterator[None]:
    """Turn what the library refuses into a usage error of this option, or of the one that the message begins with."""
    try:
        yield
    except InvalidArgument as error:
        name, _, rest = str(error).partition(": ")
        named = f"--{name.replace(' ', '-')}"
        if named in ("--burst-factor", "--burst-seconds", "--burst-share"):
            raise typer.BadParameter(rest, param_hint=named) from None
        raise typer.BadParameter(str(error), param_hint=option) from None
    except ModuleNotFoundError as error:
        package = {"yaml": "pyyaml", "PIL": "pillow"}.get(str(error.name), error.name)
        raise typer.BadParameter(
            f"needs {package}, which is missing: pip install {package}", param_hint=option
        ) from None


def make_schedule(plan: Plan) -> Schedule:
    """What to send and when.

    Raises:
        typer.BadParameter: an option that is wrong, by its name.
    """
    for name, number in (("--rate", plan.rate), ("--seconds", plan.seconds), ("--requests", plan.requests)):
        if number is not None and not 0 < number < float("inf"):
            raise typer.BadParameter(f"expected a number above 0, got {number:g}", param_hint=name)
    if plan.seconds is not None and plan.requests is not None:
        raise typer.BadParameter("give --seconds or --requests, not both", param_hint="--requests")
    if plan.trace is None:
        for name, given in (("--trace-column", plan.trace_column), ("--trace-count", plan.trace_count)):
            if given is not None:
                raise typer.BadParameter("has no meaning without --trace", param_hint=name)
    times = _drawn(plan) if plan.trace is None else _recorded(plan, plan.trace)
    with blame("--mix"):
        mix = _mix(plan.mix)
    inputs = _images(plan, len(times)) if plan.images or plan.image_size else _inputs(plan, len(times))
    return Schedule(times, prompt_inputs(inputs) if plan.generate else inputs, mix, plan.seed)


def _drawn(plan: Plan) -> Times:
    if plan.rate is None:
        raise typer.BadParameter("needed unless --trace is given", param_hint="--rate")
    seconds = None if plan.requests else plan.seconds or _DEFAULT_SECONDS
    with blame("--arrivals"):
        if plan.arrivals is Arrivals.POISSON:
            times = poisson(plan.rate, count=plan.requests, seconds=seconds, seed=plan.seed)
        else:
            times = bursty(
                plan.rate,
                burst_factor=plan.burst_factor,
                burst_s=plan.burst_seconds,
                burst_share=plan.burst_share,
                count=plan.requests,
                seconds=seconds,
                seed=plan.seed,
            )
    if not len(times):
        raise typer.BadParameter("no request arrives in this time at this rate", param_hint="--seconds")
    return times


def _recorded(plan: Plan, trace: Path) -> Times:
    """A trace's arrivals, cut to what is wanted before they are rescaled."""
    count, seconds = plan.requests, plan.seconds
    if plan.rate is not None and seconds is not None:
        count, seconds = max(1, round(plan.rate * seconds)), None
    with blame("--trace"):
        times = read_trace(
            trace,
            column=plan.trace_column,
            count_column=plan.trace_count,
            unit_s=_UNIT_S[plan.trace_unit],
            start_s=plan.trace_start,
            count=count,
            seconds=seconds,
            seed=plan.seed,
        )
        if count is not None and len(times) < count:
            typer.echo(f"the trace has {len(times)} of the {count} arrivals that were asked for", err=True)
        return times if plan.rate is None else rescaled(times, plan.rate)


def _mix(text: str) -> Sequence[Variant]:
    if Path(text).suffix in (".json", ".yaml", ".yml"):
        return read_mix(Path(text))
    return parse_mix(text) if text else (Variant(),)


def _images(plan: Plan, count: int) -> Sequence[Inputs]:
    """Files, or made images of a size."""
    hint = "--image" if plan.images else "--image-size"
    others = {"--file": plan.file, "--lengths": plan.lengths, "--tokenizer": plan.tokenizer, "--ids": plan.ids}
    others |= {"--generate": plan.generate}
    for name, given in others.items():
        if given:
            raise typer.BadParameter(f"has no meaning with {hint}", param_hint=name)
    if plan.images and plan.image_size is not None:
        raise typer.BadParameter("give --image or --image-size, not both", param_hint="--image-size")
    with blame(hint):
        if plan.image_size is not None:
            return made_images(plan.image_size, min(count, _MOST_IMAGES), seed=plan.seed)
        return image_files(plan.images)


def _inputs(plan: Plan, requests: int) -> Sequence[Inputs]:
    """Lines of a file, or made inputs."""
    count = min(requests, _MOST_INPUTS)
    if plan.file is not None:
        for name, given in (("--lengths", plan.lengths), ("--tokenizer", plan.tokenizer), ("--ids", plan.ids)):
            if given:
                raise typer.BadParameter("has no meaning for the texts of --file", param_hint=name)
        with blame("--file"):
            return text_inputs(read_texts(plan.file))
    with blame("--lengths"):
        lengths = draw_lengths(plan.lengths or "16", count, seed=plan.seed)
    if plan.ids:
        with blame("--vocabulary"):
            return id_inputs(lengths, plan.vocabulary, seed=plan.seed)
    with blame("--tokenizer"):
        return text_inputs(made_texts(lengths, plan.tokenizer, seed=plan.seed))
