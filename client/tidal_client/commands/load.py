"""`tidal load`: open-loop load test of a model."""

from __future__ import annotations

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
from tidal_client.commands.plot_file import check_plot_file
from tidal_client.commands.target import TargetServer, Url, choose_target
from tidal_client.errors import RequestError
from tidal_client.load.loop import Progress
from tidal_client.load.plot import plot as draw
from tidal_client.load.run import run_generations, run_load
from tidal_client.load.summary import LATE_MS, summarise
from tidal_client.retrying import LOAD_RETRIES


def load(
    model: Annotated[str, typer.Argument(help="Name of the model on the server.", show_default=False)],
    rate: Annotated[
        float | None, typer.Option("--rate", "-r", help="Mean requests per second; a trace is rescaled to it.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", "-s", help="Duration in seconds. Default: 10, or the whole trace.")
    ] = None,
    requests: Annotated[
        int | None, typer.Option("--requests", "-n", help="Number of requests (instead of --seconds).")
    ] = None,
    arrivals: Annotated[
        ArrivalProcess, typer.Option("--arrivals", help="Arrival process: Poisson, or Markov-modulated Poisson.")
    ] = ArrivalProcess.POISSON,
    burst_factor: Annotated[
        float, typer.Option("--burst-factor", help="Bursty: rate within a burst, relative to the mean rate.")
    ] = 3.0,
    burst_seconds: Annotated[
        float, typer.Option("--burst-seconds", help="Bursty: mean length of a burst, in seconds.")
    ] = 1.0,
    burst_share: Annotated[
        float, typer.Option("--burst-share", help="Bursty: share of the time that is bursts.")
    ] = 0.2,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", help="File of recorded arrivals: one time per line, .csv, .tsv or .jsonl; .gz allowed."
        ),
    ] = None,
    trace_column: Annotated[
        str | None, typer.Option("--trace-column", help="Column of the times in the trace.")
    ] = None,
    trace_count: Annotated[
        str | None, typer.Option("--trace-count", help="Column of the number of requests at each time.")
    ] = None,
    trace_unit: Annotated[
        TraceUnit, typer.Option("--trace-unit", help="Unit of the times in the trace.")
    ] = TraceUnit.S,
    trace_start: Annotated[
        float, typer.Option("--trace-start", help="Start of the run in the trace, in seconds.", min=0.0)
    ] = 0.0,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Send the lines of this UTF-8 file, in order, repeatedly.")
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            "--lengths", "-l", help="Lengths of synthetic texts: N, LOW-HIGH, PERCENTILE=N,... or a file. Default: 16."
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", help="A tokenizer.json to count --lengths in tokens. Default: words."),
    ] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Send random input_ids instead of texts.")] = False,
    image: Annotated[
        list[Path] | None,
        typer.Option("--image", "-i", help="Image file, or folder of them, to send in order, repeatedly; repeatable."),
    ] = None,
    image_size: Annotated[
        str | None, typer.Option("--image-size", metavar="WxH", help="Send synthetic images of this size in pixels.")
    ] = None,
    generate: Annotated[
        bool, typer.Option("--generate", "-g", help="The model generates text: send prompts, receive streams.")
    ] = False,
    vocabulary: Annotated[
        int, typer.Option("--vocabulary", help="With --ids: upper limit of the ids, exclusive.")
    ] = 30000,
    mix: Annotated[
        str, typer.Option("--mix", "-m", help="Request options and their shares, or a JSON or YAML file of them.")
    ] = "",
    output: Annotated[
        list[str] | None, typer.Option("--output", "-o", help="Output to request; repeatable. Default: all.")
    ] = None,
    slo_ms: Annotated[
        float | None,
        typer.Option("--slo-ms", help="Latency limit for goodput, in ms. Default: each request's latency_ms."),
    ] = None,
    url: Url = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.001, help="Timeout for each response, in seconds.")
    ] = DEFAULT_TIMEOUT_S,
    retry: Annotated[
        bool,
        typer.Option("--retry", help="Retry requests that end in UNAVAILABLE or lose their connection."),
    ] = False,
    seed: Annotated[
        int, typer.Option("--seed", help="Seed; equal seeds send the same requests at the same times.", min=0)
    ] = 0,
    late_ms: Annotated[
        float, typer.Option("--late-ms", min=0.001, help="Requests sent later than this many ms count as late.")
    ] = LATE_MS,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    plot: Annotated[Path | None, typer.Option("--plot", help="Save a plot as .png, .svg or .pdf.")] = None,
) -> None:
    """Run a load test: send requests on a schedule, measure latency and throughput.

    The load is open-loop: each request is sent at its scheduled time, whether earlier ones have been answered or not.
    Latency counts from the scheduled time, so stalls of the server or the generator are visible; latency from the
    actual send is printed too. A warning is printed if the generator itself was the bottleneck.

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

    A mix is a comma-separated list of variants. Each variant has space-separated options `name=value` and, after a
    colon, its share. A file has a list of objects with the options and `share`.

    With --generate, each request is a stream. The output adds the time to first token (from the scheduled time), the
    time per further token, and tokens per second; latency and --slo-ms refer to the end of the stream.

    With --retry, a request is sent up to 8 more times, after pauses that double from 0.2 s up to 5 s, within --timeout
    and its `latency_ms`, but not after its stream has begun.

    With several --url, of one protocol, requests are distributed as by the client library: a request whose connection
    fails is sent to another server, also without --retry.

    If the server runs on this machine, use HTTP: it costs the generator a fifth of gRPC's processor time.

    Exit codes:

    - **0** every request was answered
    - **1** a request failed, or the model is not ready
    - **2** wrong usage; nothing was sent
    """
    server = choose_target(url, "http")
    if slo_ms is not None and not 0 < slo_ms < float("inf"):
        raise typer.BadParameter(f"expected a number above 0, got {slo_ms:g}", param_hint="--slo-ms")
    check_plot_file(plot)
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
        raise typer.BadParameter("cannot be combined with --generate", param_hint="--output")
    schedule = make_schedule(options)
    retries = LOAD_RETRIES if retry else 0
    _check_model(server, model, timeout, retries, options, set(schedule.inputs[0]))
    with _progress(len(schedule)) as progress, usage_errors("MODEL"):
        if generate:
            result = run_generations(
                server.urls, model, schedule, timeout_s=timeout, retries=retries, progress=progress
            )
        else:
            result = run_load(
                server.urls, model, schedule, outputs=output, timeout_s=timeout, retries=retries, progress=progress
            )
    summary = summarise(result, slo_ms=slo_ms, late_ms=late_ms)
    if as_json:
        run = {"model": model, "url": server.url, "seed": seed, "slo_ms": slo_ms, "started": result.started}
        typer.echo(json.dumps(run | summary.as_json(), indent=1))
    else:
        print_report(summary)
    if summary.generator.warning:
        typer.echo(f"warning: {summary.generator.warning}; latencies include its delays", err=True)
    if plot is not None:
        draw(result, plot, title=f"{model}, {summary.offered_rate:.4g} requests per second", slo_ms=slo_ms)
    whole = summary.total.answered == summary.total.requests
    raise typer.Exit(exit_codes.OK if whole else exit_codes.FAILED)


def _check_model(
    server: TargetServer, model: str, timeout_s: float, retries: int, options: LoadOptions, names: set[str]
) -> None:
    """End the command if every request would fail: the model is not ready, or has other inputs."""
    try:
        with Client(server.urls, timeout_s=timeout_s, retries=retries) as client:
            # With retries, requests wait for a model that is not ready, and so does this check.
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
    remedy = "give --generate" if streams else "omit --generate" if options.generate else "send other inputs"
    if "image" in inputs:
        remedy = "give --image FILE or --image-size WxH"
    typer.echo(f"model '{model}' has the inputs {', '.join(inputs)}: {remedy}; nothing was sent", err=True)
    raise typer.Exit(exit_codes.USAGE)


@contextmanager
def _progress(requests: int) -> Iterator[Progress | None]:
    """Show a progress bar during the run if standard error is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Drawn only when the run reports progress, twice per second: a drawing thread would delay sends.
    with Bars(*columns, console=console, auto_refresh=False, transient=True) as bars:
        task = bars.add_task("sending", total=requests)

        def show(sent: int, ended: int) -> None:
            bars.update(task, completed=sent, description=f"sending, {sent - ended} in flight", refresh=True)

        yield show
