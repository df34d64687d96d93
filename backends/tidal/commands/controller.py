"""`tidal controller`: rebalances and scales the instances of partitioned models."""

from __future__ import annotations

from typing import Annotated

import typer

from tidal.arlo.scheduling import MIN_GAIN
from tidal.commands.connecting import NO_SERVER, Server
from tidal.commands.output import one_sentence
from tidal.commands.stopping import stop_on_signals
from tidal.controller.decisions import plan_settings
from tidal.controller.event_log import EventLog
from tidal.controller.host import HostController
from tidal.controller.metrics import ClusterMetrics
from tidal.controller.metrics_page import published
from tidal.controller.scaling import ScalingSettings
from tidal.controller.server_finder import ServerFinder

_USAGE = 2


def controller(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="Partitioned models to control. Default: all on the server."),
    ] = None,
    server: Server = None,
    period: Annotated[float, typer.Option(metavar="SECONDS", help="Time between two reallocations.")] = 120.0,
    min_gain: Annotated[
        float,
        typer.Option(metavar="SHARE", help="Reallocate only if it saves at least this share of the mean latency."),
    ] = MIN_GAIN,
    min_instances: Annotated[
        int | None,
        typer.Option(metavar="N", help="Minimum number of instances per model.  [default: as many as devices hold]"),
    ] = None,
    max_instances: Annotated[
        int | None,
        typer.Option(metavar="N", help="Maximum number of instances per model.  [default: as many as devices hold]"),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Observe one period, decide once, and exit.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print decisions without applying them.")] = False,
    host: Annotated[str, typer.Option(help="IPv4 address to publish the controller's own metrics on.")] = "127.0.0.1",
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, metavar="PORT", help="Port of these metrics; 0: a free port.  [default: no metrics]"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per event.")] = False,
) -> None:
    """Rebalance the instances of partitioned models across input lengths while `tidal serve` runs.

    The controller reads the server's metrics every second. At the end of each period it computes the allocation of
    instances to runtimes with the lowest mean latency for the queries of that period, and applies it as
    `tidal models allocate` does: in as few replacements as possible, a few at a time, without losing a request. It
    keeps the current allocation if there were no queries, or if the predicted saving is below `--min-gain`.

    A model has as many instances as the server's devices hold beside its other partitioned models: its processor cores
    divided by the threads of an instance, or its GPUs. A runtime may have none if longer ones serve its lengths. Set
    `--min-instances` and `--max-instances` for another number.

    If `--max-instances` exceeds `--min-instances`, the controller also scales: it adds an instance of the longest
    runtime when the 98th percentile of the latency reaches 95 % of the model's `slo_ms`, and removes one when the
    percentile stays below 50 % for 60 s.

    It runs until SIGINT (Ctrl-C) or SIGTERM. While the server is down, it waits.

    ```
    tidal controller
    tidal controller intents --period 60 --min-instances 2 --max-instances 8 --metrics-port 8003
    tidal controller --once --period 30 --dry-run
    ```

    Exit codes:

    - **0** stopped by a signal, or `--once` completed
    - **1** a named model is not partitioned; with `--once`: a change failed, or another controller controls the model
    - **2** wrong usage
    - **3** with `--once`: no server is running, or several are and none was named
    """
    with one_sentence(_USAGE):
        scaling = ScalingSettings(min_instances, max_instances, only_node=True)
        settings = plan_settings(period, min_gain, scaling)
    events, find = EventLog(typer.echo, as_json=as_json), ServerFinder(server)
    metrics = ClusterMetrics(dry_run=dry_run)
    stop = stop_on_signals()  # the change in progress is completed first
    if once:
        with one_sentence(NO_SERVER):
            find()
    with one_sentence(), published(metrics.registry, host, metrics_port) as port:
        if port is not None:
            events.record("metrics", f"metrics are at http://{host}:{port}/metrics", address=f"{host}:{port}")
        controlling = HostController(find, settings, models or (), events, metrics, dry_run=dry_run)
        controlling.run(stop, once=once)
