"""`tidal controller`: rebalance the instances of partitioned models as their traffic changes."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import typer

from tidal.arlo.scheduling import LEAST_GAIN
from tidal.commands.connecting import NO_SERVER, Server
from tidal.commands.output import one_sentence
from tidal.controller.decisions import Settings
from tidal.controller.following import ServerFinder
from tidal.controller.journal import Journal
from tidal.controller.meters import Meters
from tidal.controller.run import Controller

_USAGE = 2


def controller(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="Partitioned models by name; default: all of the server."),
    ] = None,
    server: Server = None,
    period: Annotated[float, typer.Option(metavar="SECONDS", help="Seconds between allocations.")] = 120.0,
    least_gain: Annotated[
        float,
        typer.Option(metavar="SHARE", help="Smallest share of the predicted mean latency that a change must save."),
    ] = LEAST_GAIN,
    fewest: Annotated[
        int | None, typer.Option(metavar="N", help="Smallest number of instances per model.  [default: as now]")
    ] = None,
    most: Annotated[
        int | None, typer.Option(metavar="N", help="Largest number of instances per model.  [default: as now]")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Observe one period, decide, and exit.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be changed, and change nothing.")
    ] = False,
    host: Annotated[str, typer.Option(help="IPv4 address of the controller's own metrics endpoint.")] = "127.0.0.1",
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            help="Port of the controller's own metrics endpoint, 0 for a free one.  [default: no endpoint]",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print lines of JSON.")] = False,
) -> None:
    """Rebalance the instances of partitioned models across input lengths, next to a running `tidal serve`.

    Reads the server's metrics every second. In every period it computes the allocation of instances to runtimes with
    the lowest mean latency for the queries of the past period, and applies it like `tidal models allocate`: with the
    fewest replacements, a few at a time, without losing a request. The allocation stays unchanged without queries, and
    where a change would save less than `--least-gain` of the predicted mean latency.

    Where `--fewest` and `--most` differ, it also changes the number of instances: it adds one of the longest runtime
    when the 98th percentile of the latency reaches 95 % of the model's `slo_ms`, and removes one when it stays below
    50 % for 60 s.

    Runs until SIGINT (Ctrl-C) or SIGTERM, and waits while the server is down.

    ```
    tidal controller
    tidal controller intents --period 60 --fewest 2 --most 8 --metrics-port 8003
    tidal controller --once --period 30 --dry-run
    ```

    Exit codes:

    - **0** stopped by a signal, or `--once` done
    - **1** a named model is not partitioned; with `--once`, a change failed or the model has another controller
    - **2** wrong usage
    - **3** with `--once`, no server answers, or several run and none was named
    """
    with one_sentence(_USAGE):
        settings = Settings(period_s=period, least_gain=least_gain, fewest=fewest, most=most)
    journal, meters, find = Journal(typer.echo, as_json=as_json), Meters(), ServerFinder(server)
    stop = threading.Event()
    _stop_on_signals(stop)
    if once:
        with one_sentence(NO_SERVER):
            find()
    with one_sentence(), meters.published(host, metrics_port) as port:
        if port is not None:
            journal.tell("metrics", f"publishes http://{host}:{port}/metrics", address=f"{host}:{port}")
        control = Controller(find, settings, models or (), journal, meters, dry_run=dry_run)
        # In a thread of its own: the code that a signal handler interrupts must not hold the lock of `stop`.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(control.run, stop, once=once).result()


def _stop_on_signals(stop: threading.Event) -> None:
    """Set `stop` at the first signal, so that a change in progress completes; a second signal ends at once."""

    def receive(number: int, _frame: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, receive)
