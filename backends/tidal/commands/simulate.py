"""`tidal simulate`: run the serving policies on simulated GPUs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tidal.arlo.scheduling import MIN_GAIN
from tidal.commands.connecting import AsJson
from tidal.commands.output import one_sentence
from tidal.commands.simulate_inputs import bounds_of, columns_of, lengths_of, rates_of, service_times
from tidal.commands.simulate_output import print_results, progress_bar
from tidal.simulator.arlo import (
    OVERHEAD_S,
    TWEETS,
    Bursts,
    GpuFailures,
    ScalingBounds,
    SyntheticRequests,
    SystemName,
    length_history,
    make_system,
)
from tidal.simulator.arlo import simulate as run
from tidal.simulator.arlo.plot import plot as draw
from tidal.simulator.requests import RequestSource
from tidal.simulator.traces import read_requests
from tidal_client.commands.plot_file import check_plot_file

simulate = typer.Typer(
    rich_markup_mode="markdown",
    no_args_is_help=True,
    add_completion=False,
    help="""Simulate the serving policies on clusters of any size, under a virtual clock.

The policies and solvers are those that serve; only the GPUs are simulated.
""",
)


@simulate.callback()
def _group() -> None:
    """Keep `arlo` a subcommand while it is the only one."""


class Pattern(StrEnum):
    """Distribution of arrivals within a second."""

    STABLE = "stable"
    BURSTY = "bursty"


@simulate.command()
def arlo(
    profile: Annotated[
        Path,
        typer.Argument(
            help="Latencies: a CSV table (length, static_ms and, for dt, dynamic_ms), or a published version's folder.",
            show_default=False,
        ),
    ],
    gpus: Annotated[int, typer.Option("--gpus", "-g", help="Number of GPUs at the start.", min=1)],
    slo_ms: Annotated[float, typer.Option("--slo-ms", help="Latency objective of the requests in milliseconds.")],
    rate: Annotated[
        float | None, typer.Option("--rate", "-r", help="Mean requests per second; --rates is scaled to it.")
    ] = None,
    seconds: Annotated[
        int | None,
        typer.Option("--seconds", "-s", help="Simulated seconds. Default: 600, or all of --rates.", min=1),
    ] = None,
    systems: Annotated[
        list[SystemName] | None,
        typer.Option("--system", help="System to simulate; repeatable. Default: arlo, infaas, st, and dt if possible."),
    ] = None,
    runtimes: Annotated[
        str | None, typer.Option("--runtimes", help="Other max_lengths than those of the profile: 128,256,512.")
    ] = None,
    pattern: Annotated[
        Pattern, typer.Option("--pattern", help="Arrivals within a second: Poisson, or Markov-modulated.")
    ] = Pattern.STABLE,
    burst_factor: Annotated[
        float, typer.Option("--burst-factor", help="Ratio of the rate in a burst to the mean rate.")
    ] = 1.5,
    burst_seconds: Annotated[float, typer.Option("--burst-seconds", help="Mean duration of a burst in seconds.")] = 0.2,
    burst_share: Annotated[float, typer.Option("--burst-share", help="Share of the time in bursts.")] = 0.2,
    rates: Annotated[
        Path | None, typer.Option("--rates", help="Trace of rates: CSV or .csv.gz with columns second, requests.")
    ] = None,
    start: Annotated[float, typer.Option("--start", help="Second of --rates at which to start.", min=0.0)] = 0.0,
    requests: Annotated[
        Path | None,
        typer.Option("--requests", help="Recorded requests (instead of --rates): CSV with columns time, length."),
    ] = None,
    columns: Annotated[
        str | None, typer.Option("--columns", help="Other names of the two columns of --rates or --requests: A,B.")
    ] = None,
    lengths: Annotated[
        str,
        typer.Option(
            "--lengths", "-l", help="Input lengths in tokens: N, PERCENTILE=N,..., or a CSV with columns tokens, count."
        ),
    ] = TWEETS,
    stretch: Annotated[
        int | None,
        typer.Option(
            "--stretch", help="Length in tokens that is scaled to the longest runtime. Default: 125 for tweets.", min=1
        ),
    ] = None,
    drift: Annotated[
        float, typer.Option("--drift", help="Drift of the lengths: standard deviation of the log length.", min=0.0)
    ] = 0.2,
    drift_seconds: Annotated[float, typer.Option("--drift-seconds", help="Duration of a drift in seconds.")] = 600.0,
    autoscale: Annotated[
        str | None, typer.Option("--autoscale", help="Bounds of the number of GPUs: MIN-MAX. Default: fixed.")
    ] = None,
    headroom: Annotated[
        float, typer.Option("--headroom", help="Share of GPU time that the baselines keep free when autoscaling.")
    ] = 0.05,
    period: Annotated[float, typer.Option("--period", help="Seconds between allocations.")] = 120.0,
    min_gain: Annotated[
        float,
        typer.Option("--min-gain", help="Smallest share of the predicted mean latency that a change must save."),
    ] = MIN_GAIN,
    replacement: Annotated[float, typer.Option("--replacement", help="Seconds to load a runtime on a GPU.")] = 1.0,
    replacement_batch: Annotated[
        int | None, typer.Option("--at-once", help="GPUs replaced at a time. Default: one in 20.", min=1)
    ] = None,
    overhead_ms: Annotated[
        float,
        typer.Option("--overhead-ms", help="Milliseconds added to every request for network and copies.", min=0.0),
    ] = OVERHEAD_S * 1e3,
    threshold: Annotated[float, typer.Option("--threshold", help="λ of Algorithm 1.")] = 0.85,
    decay: Annotated[float, typer.Option("--decay", help="α of Algorithm 1.")] = 0.9,
    peek: Annotated[int, typer.Option("--peek", help="L of Algorithm 1.", min=1)] = 6,
    fill: Annotated[float, typer.Option("--fill", help="infaas: share of an instance's capacity that is used.")] = 0.05,
    fail_every: Annotated[
        float | None, typer.Option("--fail-every", help="Mean seconds between failures of one GPU. Default: never.")
    ] = None,
    repair: Annotated[float, typer.Option("--repair", help="Seconds until a failed GPU is repaired.")] = 30.0,
    seed: Annotated[
        int, typer.Option("--seed", help="Seed of the random numbers; equal seeds give equal runs.", min=0)
    ] = 0,
    as_json: AsJson = False,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write a plot to this file: .png, .svg or .pdf.")] = None,
) -> None:
    """Simulate Arlo and the systems that it is compared with, under the same requests.

    Systems:

    - **arlo** periodic allocation, Algorithm 1, autoscaling on the 98th percentile
    - **earliest** the same with dispatch to the instance that is expected to answer first, as models do by default
    - **st**, **dt** one runtime for all lengths, padded or of dynamic shape; the least loaded GPU
    - **infaas** runtimes in equal numbers, bin packing
    - **even**, **global** Arlo with equal numbers, or with the best allocation for the whole workload; both are fixed
    - **ilb**, **ig** Arlo with the least loaded instance of the shortest runtime that fits, or of all that fit
    - **polymorphic** every GPU holds all runtimes and forms batches

    Examples:

    ```
    tidal simulate arlo base.csv --gpus 10 --slo-ms 150 --rate 1000
    tidal simulate arlo large.csv -g 300 --slo-ms 450 -r 25000 -s 60 --plot run.png
    tidal simulate arlo model_repository/intents/3 -g 8 --slo-ms 100 -r 500
    tidal simulate arlo large.csv -g 5 --slo-ms 450 --rates day.csv --autoscale 2-12
    tidal simulate arlo large.csv -g 40 --slo-ms 450 -r 3000 --system arlo --system ig
    ```

    Arlo starts with the lengths of the first period as its history.

    Exit codes: **0** done, **1** a file or number is not valid, **2** wrong usage.
    """
    check_plot_file(plot)
    with one_sentence():
        times = service_times(profile, runtimes)
        chosen = systems or [
            SystemName.ARLO,
            SystemName.INFAAS,
            SystemName.ST,
            *([SystemName.DT] if times.dynamic_s is not None else []),
        ]
        workload: RequestSource
        if requests is not None:
            workload = read_requests(requests, columns_of(columns, ("time", "length")), longest=times.longest)
        else:
            workload = SyntheticRequests(
                rates_of(rates, columns, start, seconds, rate),
                *lengths_of(lengths, stretch, times.longest),
                longest=times.longest,
                bursts=Bursts(burst_factor, burst_seconds, burst_share) if pattern is Pattern.BURSTY else None,
                drift=drift,
                drift_s=drift_seconds,
                seed=seed,
            )
        scale = None if autoscale is None else ScalingBounds(*bounds_of(autoscale), headroom=headroom)
        failures = None if fail_every is None else GpuFailures(fail_every, repair, seed)
        results = []
        for name in chosen:
            system = make_system(
                name,
                times,
                gpus=gpus,
                slo_s=slo_ms / 1e3,
                history=length_history(workload) if name is SystemName.GLOBAL else length_history(workload, period),
                scale=scale,
                period_s=period,
                min_gain=min_gain,
                threshold=threshold,
                decay=decay,
                peek=peek,
                fill=fill,
            )
            with progress_bar(name, workload.seconds) as on_second:
                result = run(
                    system,
                    workload,
                    overhead_s=overhead_ms / 1e3,
                    replacement_s=replacement,
                    replacement_batch=replacement_batch,
                    failures=failures,
                    on_second=on_second,
                )
            results.append(result)
    print_results(results, slo_ms / 1e3, as_json)
    if plot is not None:
        draw(
            results,
            plot,
            title=f"{gpus} GPUs, {results[0].requests / results[0].seconds:.0f} requests per second",
            slo_s=slo_ms / 1e3,
        )
