"""How a build's progress is shown, apart from its result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def progress_bars(name: str) -> Iterator[Callable[[str, float], None]]:
    """Bars on standard error, one a stage; a line a stage where that is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        said: set[str] = set()

        def line(stage: str, _share: float) -> None:
            if stage not in said:
                said.add(stage)
                console.print(f"{name}: {stage}", markup=False, highlight=False, soft_wrap=True)

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
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
    """Send what libraries print to standard error: standard output belongs to the result."""
    stdout = sys.stdout
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = stdout
