"""Progress bars of transfers, on standard error where that is a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from tidal.version_store.transfers import Report


@contextmanager
def transfer_bars() -> Iterator[Report]:
    """Show one bar per step; nothing where standard error is not a terminal.

    Yields:
        Function to call with the name of the running step, its bytes that are done, and its bytes in total.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _step, _done, _total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def show(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=total)
            bars.update(tasks[step], completed=done, total=total)

        yield show
