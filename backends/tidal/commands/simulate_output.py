"""Output of `tidal simulate`: the progress bar, and the table or JSON of the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tidal.commands.output import print_json, print_table
from tidal.simulator.arlo import ClusterResult, SystemName


@contextmanager
def progress_bar(name: SystemName, seconds: int) -> Iterator[Callable[[float], None] | None]:
    """Show a progress bar on standard error during a run, where that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f} s"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task(name.value, total=seconds)
        yield lambda now: bars.update(task, completed=now)


def print_results(results: Sequence[ClusterResult], slo_s: float, as_json: bool) -> None:
    """Print the results of all systems.

    Args:
        results: Result of each system.
        slo_s: Latency objective in seconds.
        as_json: Whether to print one line of JSON instead of a table.
    """
    if as_json:
        print_json([_row(result, slo_s) for result in results])
        return
    rows = [
        (
            result.name,
            f"{result.mean_ms:.2f}",
            f"{result.percentile_ms(50):.2f}",
            f"{result.percentile_ms(98):.2f}",
            f"{result.share_over(slo_s):.2%}",
            f"{result.mean_gpus:.2f}",
            f"{result.utilisation:.0%}",
            str(result.demotions),
            str(result.replaced),
            str(result.failed_batches),
        )
        for result in results
    ]
    columns = ("SYSTEM", "MEAN MS", "MEDIAN", "P98", "OVER SLO", "GPUS", "USED", "DEMOTED", "REPLACED", "FAILED")
    duration_s = max(result.moments[-1].at for result in results)
    print_table(
        columns,
        rows,
        notes=f"{results[0].requests} requests in {results[0].seconds:.0f} s, the last answer "
        f"after {duration_s:.0f} s at most",
    )


def _row(result: ClusterResult, slo_s: float) -> dict[str, Any]:
    last = result.moments[-1]
    return {
        "system": result.name,
        "requests": result.requests,
        "seconds": result.seconds,
        "mean_ms": result.mean_ms,
        "median_ms": result.percentile_ms(50),
        "p98_ms": result.percentile_ms(98),
        "over_slo": result.share_over(slo_s),
        "gpus": result.mean_gpus,
        "utilisation": result.utilisation,
        "demotions": result.demotions,
        "replaced": result.replaced,
        "failed_batches": result.failed_batches,
        "instances": dict(zip(map(str, result.max_lengths), last.instances, strict=True)),
        "moments": [[each.at, each.gpus, list(each.instances), each.waiting] for each in result.moments],
    }
