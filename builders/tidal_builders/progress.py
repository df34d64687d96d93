"""Shows the progress of a build on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def progress_bars(name: str) -> Iterator[Callable[[str, float], None]]:
    """Show one progress bar per stage, with elapsed and remaining time; one line if standard error is not a terminal.

    Args:
        name: Name of the model.

    Yields:
        Function to call with the name of the running stage and the completed share of it.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        printed: set[str] = set()

        def line(stage: str, _share: float) -> None:
            if stage not in printed:
                printed.add(stage)
                console.print(f"{name}: {stage}", markup=False, highlight=False, soft_wrap=True)

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, object] = {}

        def bar(stage: str, share: float) -> None:
            for other, task in tasks.items():
                if other != stage:
                    bars.update(task, completed=1.0)  # type: ignore[arg-type]
                    bars.stop_task(task)  # type: ignore[arg-type]
            if stage not in tasks:
                tasks[stage] = bars.add_task(f"{name}: {stage}", total=1.0)
            bars.update(tasks[stage], completed=share)  # type: ignore[arg-type]

        yield bar


@contextmanager
def clean_stdout() -> Iterator[None]:
    """Redirect what libraries print to standard error: standard output is reserved for results."""
    stdout = sys.stdout
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = stdout
