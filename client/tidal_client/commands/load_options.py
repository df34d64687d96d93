"""The schedule of a run from the options of `tidal load`."""

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
from tidal_client.load.mix import RequestVariant, parse_mix, read_mix
from tidal_client.load.run import Schedule
from tidal_client.load.traces import read_trace

_DEFAULT_SECONDS = 10.0
# Number of distinct synthetic inputs; longer runs repeat them.
_MOST_INPUTS = 20_000
_MOST_IMAGES = 200


class ArrivalProcess(StrEnum):
    """Arrival processes of --arrivals."""

    POISSON = "poisson"
    BURSTY = "bursty"


class TraceUnit(StrEnum):
    """Values of --trace-unit."""

    S = "s"
    MS = "ms"
    US = "us"


_UNIT_S = {TraceUnit.S: 1.0, TraceUnit.MS: 1e-3, TraceUnit.US: 1e-6}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Options of `tidal load` that determine the schedule; see its help."""

    rate: float | None
    seconds: float | None
    requests: int | None
    arrivals: ArrivalProcess
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
def usage_errors(option: str) -> Iterator[None]:
    """Turn the library's errors into usage errors of an option, or of the option that the message begins with."""
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
            f"requires {package}, which is not installed: pip install {package}", param_hint=option
        ) from None


def make_schedule(options: LoadOptions) -> Schedule:
    """Return the requests to send and their times.

    Raises:
        typer.BadParameter: An option is invalid; the error names it.
    """
    for name, number in (("--rate", options.rate), ("--seconds", options.seconds), ("--requests", options.requests)):
        if number is not None and not 0 < number < float("inf"):
            raise typer.BadParameter(f"got {number:g}; expected a number above 0", param_hint=name)
    if options.seconds is not None and options.requests is not None:
        raise typer.BadParameter(
            "--seconds and --requests exclude each other: give one of them", param_hint="--requests"
        )
    if options.trace is None:
        for name, given in (("--trace-column", options.trace_column), ("--trace-count", options.trace_count)):
            if given is not None:
                raise typer.BadParameter("requires --trace", param_hint=name)
    times = _drawn(options) if options.trace is None else _recorded(options, options.trace)
    with usage_errors("--mix"):
        mix = _mix(options.mix)
    inputs = _images(options, len(times)) if options.images or options.image_size else _inputs(options, len(times))
    return Schedule(times, prompt_inputs(inputs) if options.generate else inputs, mix, options.seed)


def _drawn(options: LoadOptions) -> Times:
    if options.rate is None:
        raise typer.BadParameter("required unless --trace is given", param_hint="--rate")
    seconds = None if options.requests else options.seconds or _DEFAULT_SECONDS
    with usage_errors("--arrivals"):
        if options.arrivals is ArrivalProcess.POISSON:
            times = poisson(options.rate, count=options.requests, seconds=seconds, seed=options.seed)
        else:
            times = bursty(
                options.rate,
                burst_factor=options.burst_factor,
                burst_s=options.burst_seconds,
                burst_share=options.burst_share,
                count=options.requests,
                seconds=seconds,
                seed=options.seed,
            )
    if not len(times):
        raise typer.BadParameter("the run is too short for a request at this rate", param_hint="--seconds")
    return times


def _recorded(options: LoadOptions, trace: Path) -> Times:
    """Read a trace's arrivals, cut to the run's length before they are rescaled."""
    count, seconds = options.requests, options.seconds
    if options.rate is not None and seconds is not None:
        count, seconds = max(1, round(options.rate * seconds)), None
    with usage_errors("--trace"):
        times = read_trace(
            trace,
            column=options.trace_column,
            count_column=options.trace_count,
            unit_s=_UNIT_S[options.trace_unit],
            start_s=options.trace_start,
            count=count,
            seconds=seconds,
            seed=options.seed,
        )
        if count is not None and len(times) < count:
            typer.echo(f"the trace has only {len(times)} of the {count} requested arrivals", err=True)
        return times if options.rate is None else rescaled(times, options.rate)


def _mix(text: str) -> Sequence[RequestVariant]:
    if Path(text).suffix in (".json", ".yaml", ".yml"):
        return read_mix(Path(text))
    return parse_mix(text) if text else (RequestVariant(),)


def _images(options: LoadOptions, count: int) -> Sequence[Inputs]:
    """Return images from files, or synthetic ones."""
    hint = "--image" if options.images else "--image-size"
    others = {
        "--file": options.file,
        "--lengths": options.lengths,
        "--tokenizer": options.tokenizer,
        "--ids": options.ids,
    }
    others |= {"--generate": options.generate}
    for name, given in others.items():
        if given:
            raise typer.BadParameter(f"cannot be combined with {hint}", param_hint=name)
    if options.images and options.image_size is not None:
        raise typer.BadParameter(
            "--image and --image-size exclude each other: give one of them", param_hint="--image-size"
        )
    with usage_errors(hint):
        if options.image_size is not None:
            return made_images(options.image_size, min(count, _MOST_IMAGES), seed=options.seed)
        return image_files(options.images)


def _inputs(options: LoadOptions, requests: int) -> Sequence[Inputs]:
    """Return the lines of a file, or synthetic texts or ids."""
    count = min(requests, _MOST_INPUTS)
    if options.file is not None:
        for name, given in (("--lengths", options.lengths), ("--tokenizer", options.tokenizer), ("--ids", options.ids)):
            if given:
                raise typer.BadParameter("cannot be combined with --file", param_hint=name)
        with usage_errors("--file"):
            return text_inputs(read_texts(options.file))
    with usage_errors("--lengths"):
        lengths = draw_lengths(options.lengths or "16", count, seed=options.seed)
    if options.ids:
        with usage_errors("--vocabulary"):
            return id_inputs(lengths, options.vocabulary, seed=options.seed)
    with usage_errors("--tokenizer"):
        return text_inputs(made_texts(lengths, options.tokenizer, seed=options.seed))
