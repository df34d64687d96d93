"""`tidal load`: send requests on a schedule, whatever the answers, and say what became of them."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from tidal_client import exit_codes
from tidal_client.client import DEFAULT_TIMEOUT_S, Client
from tidal_client.commands.load_options import ArrivalProcess, LoadOptions, TraceUnit, make_schedule, usage_errors
from tidal_client.commands.load_report import print_report
from tidal_client.commands.target import TargetServer, Url, choose_target
from tidal_client.errors import RequestError
from tidal_client.load.loop import Progress
from tidal_client.load.plot import plot as draw
from tidal_client.load.run import run_generations, run_load
from tidal_client.load.summary import LATE_MS, summarise
from tidal_client.retrying import LOAD_RETRIES

_PICTURES = (".png", ".svg", ".pdf")


def load(
    model: Annotated[str, typer.Argument(help="Name of the model, as the server lists it.", show_default=False)],
    rate: Annotated[
        float | None, typer.Option("--rate", "-r", help="Mean requests a second; a trace is rescaled to it.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", "-s", help="How long requests arrive. Default: 10, or the whole trace.")
    ] = None,
    requests: Annotated[int | None, typer.Option("--requests", "-n", help="How many instead of how long.")] = None,
    arrivals: Annotated[
        ArrivalProcess, typer.Option("--arrivals", help="Poisson, or bursty: Markov-modulated Poisson.")
    ] = ArrivalProcess.POISSON,
    burst_factor: Annotated[
        float, typer.Option("--burst-factor", help="Bursty: rate within a burst over the mean rate.")
    ] = 3.0,
    burst_seconds: Annotated[float, typer.Option("--burst-seconds", help="Bursty: mean length of a burst.")] = 1.0,
    burst_share: Annotated[float, typer.Option("--burst-share", help="Bursty: share of the time in bursts.")] = 0.2,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", help="Recorded arrivals: a time a line, .csv, .tsv or .jsonl, or .gz of it."),
    ] = None,
    trace_column: Annotated[
        str | None, typer.Option("--trace-column", help="Column or key of the times, for CSV and JSON lines.")
    ] = None,
    trace_count: Annotated[
        str | None, typer.Option("--trace-count", help="Column or key of the number of requests in a row.")
    ] = None,
    trace_unit: Annotated[TraceUnit, typer.Option("--trace-unit", help="Unit of the trace's times.")] = TraceUnit.S,
    trace_start: Annotated[
        float, typer.Option("--trace-start", help="Begin this many seconds into the trace.", min=0.0)
    ] = 0.0,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Texts to send, the lines of this UTF-8 file in turn.")
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            "--lengths", "-l", help="Lengths of made texts: N, LOW-HIGH, PERCENTILE=N,..., a file. Default: 16."
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", help="tokenizer.json, for lengths in tokens; they are words otherwise."),
    ] = None,
    ids: Annotated[
        bool, typer.Option("--ids", help="Send input_ids of exactly these lengths instead of texts.")
    ] = False,
    image: Annotated[
        list[Path] | None,
        typer.Option("--image", "-i", help="Send image files in turn; a file or a folder of them, repeatable."),
    ] = None,
    image_size: Annotated[
        str | None, typer.Option("--image-size", metavar="WxH", help="Send made images of this size in pixels.")
    ] = None,
    generate: Annotated[
        bool, typer.Option("--generate", "-g", help="Ask a model that generates text: texts are prompts, by stream.")
    ] = False,
    vocabulary: Annotated[int, typer.Option("--vocabulary", help="With --ids: ids are below this.")] = 30000,
    mix: Annotated[
        str, typer.Option("--mix", "-m", help="Options of the requests and their shares, or a JSON or YAML file.")
    ] = "",
    output: Annotated[
        list[str] | None, typer.Option("--output", "-o", help="Output to ask for; repeatable. Default: all.")
    ] = None,
    slo_ms: Annotated[
        float | None, typer.Option("--slo-ms", help="Limit for goodput. Default: each request's own latency_ms.")
    ] = None,
    url: Url = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.001, help="Seconds to wait for each answer.")
    ] = DEFAULT_TIMEOUT_S,
    retry: Annotated[
        bool,
        typer.Option("--retry", help="Send a request again that is refused UNAVAILABLE or loses its connection."),
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Equal seeds send the same at the same times.", min=0)] = 0,
    late_ms: Annotated[
        float, typer.Option("--late-ms", min=0.001, help="A request sent later than this counts as sent late.")
    ] = LATE_MS,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write a picture, .png, .svg or .pdf.")] = None,
) -> None:
    """Send requests on a schedule, whatever the answers, and say what became of them.

    The loop is open: every request is sent at its time even when earlier ones wait, as users do. Latency counts from
    the scheduled time, so that a generator or server that stalls cannot hide it; the latency from the actual send
    stands beside it. Where the generator itself could not keep up, the output says so.

    Examples:

    ```
    tidal load intent --rate 100 --seconds 30 --slo-ms 50
    tidal load intent --rate 100 --requests 3000 --file questions.txt --json
    tidal load intent --rate 60 --arrivals bursty --burst-factor 4 --burst-seconds 2 --burst-share 0.1
    tidal load intent --trace day.csv.gz --trace-column t --rate 80 --seconds 60
    tidal load intent --trace rate.csv --trace-column second --trace-count requests --trace-start 3600 -s 120
    tidal load intent -r 50 --lengths 0=3,50=24,98=64,100=128 --tokenizer tokenizer.json --plot run.png
    tidal load intent -r 50 --ids --lengths 8-128
    tidal load intent -r 50 --mix 'latency_ms=100:0.7,latency_ms=500 task=a:0.3'
    tidal load vit -r 20 --image photos/ --mix task=animals
    tidal load vit -r 20 --image-size 224x224 --mix task=animals,task=birds
    tidal load writer -r 4 --generate --lengths 8-64 --mix max_tokens=16:0.5,max_tokens=128:0.5
    ```

    A mix is a list of variants apart by commas, each with options `name=value` apart by spaces and, after a colon,
    its share. As a file it is a list of objects with the options and `share`.

    With --generate each request is a stream. The output adds the time to the first token (from the scheduled time),
    the time per further token, and tokens a second; latency and --slo-ms are about the end of the stream. A request
    of --retry is sent up to 8 times more, after pauses that double from 0.2 s up to 5 s, within --timeout and its
    `latency_ms`, and not once its stream has begun.

    HTTP costs this machine a fifth of gRPC's processor time, which matters where the server runs here too.

    Exit codes, also when the generator was the bottleneck:

    - **0** every request was answered
    - **1** a request failed, or the model is not ready
    - **2** wrong arguments, nothing was sent
    """
    server = choose_target(url, "http")
    if slo_ms is not None and not 0 < slo_ms < float("inf"):
        raise typer.BadParameter(f"expected a number above 0, got {slo_ms:g}", param_hint="--slo-ms")
    _check_picture(plot)
    options = LoadOptions(
        rate=rate,
        seconds=seconds,
        requests=requests,
        arrivals=arrivals,
        burst_factor=burst_factor,
        burst_seconds=burst_seconds,
        burst_share=burst_share,
        trace=trace,
        trace_column=trace_column,
        trace_count=trace_count,
        trace_unit=trace_unit,
        trace_start=trace_start,
        file=file,
        lengths=lengths,
        tokenizer=tokenizer,
        ids=ids,
        vocabulary=vocabulary,
        mix=mix,
        seed=seed,
        images=image or (),
        image_size=image_size,
        generate=generate,
    )
    if generate and output:
        raise typer.BadParameter("has no meaning with --generate", param_hint="--output")
    schedule = make_schedule(options)
    retries = LOAD_RETRIES if retry else 0
    _check_model(server, model, timeout, retries, options, set(schedule.inputs[0]))
    with _progress(len(schedule)) as progress, usage_errors("MODEL"):
        if generate:
            result = run_generations(server.url, model, schedule, timeout_s=timeout, retries=retries, progress=progress)
        else:
            result = run_load(
                server.url, model, schedule, outputs=output, timeout_s=timeout, retries=retries, progress=progress
            )
    summary = summarise(result, slo_ms=slo_ms, late_ms=late_ms)
    if as_json:
        run = {"model": model, "url": server.url, "seed": seed, "slo_ms": slo_ms, "started": result.started}
        typer.echo(json.dumps(run | summary.as_json(), indent=1))
    else:
        print_report(summary)
    if summary.generator.warning:
        typer.echo(f"warning: {summary.generator.warning}; latencies are the generator's as well", err=True)
    if plot is not None:
        draw(result, plot, title=f"{model}, {summary.offered_rate:.4g} requests a second", slo_ms=slo_ms)
    whole = summary.total.answered == summary.total.requests
    raise typer.Exit(exit_codes.OK if whole else exit_codes.FAILED)


def _check_picture(file: Path | None) -> None:
    """Say what is wrong with --plot before the run rather than after it."""
    if file is None:
        return
    if importlib.util.find_spec("matplotlib") is None:
        raise typer.BadParameter("needs matplotlib, which is missing: pip install matplotlib", param_hint="--plot")
    if file.suffix not in _PICTURES:
        raise typer.BadParameter(f"expected a name that ends in {', '.join(_PICTURES)}", param_hint="--plot")
    if not file.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {file.parent}", param_hint="--plot")


def _check_model(
    server: TargetServer, model: str, timeout_s: float, retries: int, options: LoadOptions, names: set[str]
) -> None:
    """End the command when every request would fail: the model is not there, or takes other inputs."""
    try:
        with Client(server.url, timeout_s=timeout_s, retries=retries) as client:
            # With retries a model that is away is waited for, as the requests do.
            ready = retries > 0 or client.ready(model)
            inputs = [tensor.name for tensor in client.metadata(model).inputs] if ready else []
            reason = f"model '{model}' is not ready at {server.url}"
    except RequestError as error:
        ready, inputs, reason = False, [], server.message(error)
    if not ready:
        typer.echo(f"{reason}; nothing was sent", err=True)
        raise typer.Exit(exit_codes.FAILED)
    streams = "stream" in inputs
    if names <= set(inputs) and streams == options.generate:
        return
    remedy = "give --generate" if streams else "leave out --generate" if options.generate else "send other inputs"
    if "image" in inputs:
        remedy = "give --image FILE or --image-size WxH"
    typer.echo(f"model '{model}' takes {', '.join(inputs)}: {remedy}; nothing was sent", err=True)
    raise typer.Exit(exit_codes.USAGE)


@contextmanager
def _progress(requests: int) -> Iterator[Progress | None]:
    """A bar on standard error while the run lasts, where that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # The run says when to draw, twice a second: a thread that draws more often holds up sends.
    with Bars(*columns, console=console, auto_refresh=False, transient=True) as bars:
        task = bars.add_task("sending", total=requests)

        def show(sent: int, ended: int) -> None:
            bars.update(task, completed=sent, description=f"sending, {sent - ended} in flight", refresh=True)

        yield show
