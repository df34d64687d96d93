"""`tidal top`: live figures of models in a terminal."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Iterator
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.live import Live

from tidal_client import exit_codes
from tidal_client.errors import RequestError
from tidal_client.live.display import render
from tidal_client.live.sources import Frame, MetricsTarget, frames_of_gateway, frames_of_servers
from tidal_client.local_servers import running_servers

KEY_VARIABLE = "TIDAL_API_KEY"


def top(
    target: Annotated[
        str | None,
        typer.Argument(
            help="http://HOST:PORT/metrics: metrics of a server; http://HOST:PORT: a gateway. "
            "Default: the servers that run on this machine.",
            show_default=False,
        ),
    ] = None,
    interval: Annotated[float, typer.Option("--interval", "-i", min=0.2, help="Seconds between two readings.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print the figures of one interval and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per interval.")] = False,
) -> None:
    """Show the models of running servers: state, throughput, latency, queue, and figures specific to each backend.

    Rates and percentiles are of the last 5 seconds. Below the table each model that works has a line with its own
    figures: runtimes and lengths (arlo), levels and confidence (tabi), tasks (pets), gamma and utility (otas), slots
    and tokens per second (flover). State, engine and restarts are known of servers that `tidal serve` runs on this
    machine, and through a gateway, whose API key is read from the environment variable TIDAL_API_KEY. Ctrl-C ends it.

    Examples:

    ```
    tidal top
    tidal top http://10.0.0.1:8002/metrics --interval 5
    tidal top https://gateway.example.org
    tidal top --once --json
    ```

    With --json, each object has `time`, `servers` and `models`. A model has `name`, `state`, `versions`, `engine`,
    `restarts`, `summary` and `values`, the current values by chart and series.

    Exit codes:

    - **0** ended by Ctrl-C, or after `--once`
    - **1** a server or the gateway does not answer or refuses; standard error says why
    - **2** wrong usage
    """
    frames = _frames(target, interval)
    if once:  # the first reading has nothing to compare with
        frames = itertools.islice(frames, 1, 2)
    try:
        if as_json:
            for frame in frames:
                print(json.dumps(frame), flush=True)
        elif once or not sys.stdout.isatty():
            console = Console(width=None if sys.stdout.isatty() else 120)
            for frame in frames:
                console.print(render(frame))
        else:
            with Live(screen=True, auto_refresh=False) as live:
                for frame in frames:
                    live.update(render(frame), refresh=True)
    except RequestError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(exit_codes.FAILED) from None
    except KeyboardInterrupt:
        return


def _frames(target: str | None, interval_s: float) -> Iterator[Frame]:
    if target is None:
        found = [MetricsTarget(each.metrics, each.status) for each in running_servers() if each.metrics is not None]
        if not found:
            typer.echo(
                "error: no server runs on this machine: start one with `tidal serve`, or name the metrics of a server, "
                "http://HOST:8002/metrics, or a gateway, http://HOST:9000",
                err=True,
            )
            raise typer.Exit(exit_codes.FAILED)
        return frames_of_servers(found, interval_s)
    parts = urlsplit(target)
    metrics = parts.path == "/metrics"
    try:
        accepted = parts.scheme in (("http",) if metrics else ("http", "https")) and parts.hostname and parts.port != 0
    except ValueError:  # the port is no number
        accepted = False
    if not accepted or parts.path not in ("", "/", "/metrics") or parts.query or parts.username:
        raise typer.BadParameter(
            f"'{target}' is not accepted; expected http://HOST:PORT/metrics for a server, or http://HOST:PORT or "
            "https://HOST:PORT for a gateway",
            param_hint="TARGET",
        )
    if metrics:
        return frames_of_servers([MetricsTarget(parts.netloc)], interval_s)
    return frames_of_gateway(target, os.environ.get(KEY_VARIABLE), interval_s)
