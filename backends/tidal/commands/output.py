"""Output of commands: tables on a terminal, aligned text or JSON elsewhere, errors as one sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidal.errors import TidalError

# Output that does not go to a terminal is neither wrapped nor cut.
_PLAIN_WIDTH = 10_000


@contextmanager
def one_sentence(exit_code: int = 1) -> Iterator[None]:
    """Print a TidalError as one sentence on standard error, and exit.

    Args:
        exit_code: Exit code for such an error.
    """
    try:
        yield
    except TidalError as error:
        fail(str(error), exit_code)


def fail(message: str, exit_code: int = 1) -> NoReturn:
    """Print an error on standard error and exit with the code."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(exit_code)


def print_json(value: Any) -> None:
    """Print a JSON document on one line, so that the reader of a pipe knows when it is complete."""
    typer.echo(json.dumps(value, default=str))


def table_console() -> Console:
    """A console for tables: as wide as the terminal; elsewhere as wide as the tables."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=_PLAIN_WIDTH, no_color=True, highlight=False)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", notes: str = "") -> None:
    """Print a table: boxed on a terminal, aligned columns elsewhere.

    Args:
        columns: Headers of the columns.
        rows: Cells of each row, one per column.
        title: Line above the table.
        notes: Lines below the table.
    """
    console = table_console()
    plain = not console.is_terminal
    table = Table(box=None if plain else box.ROUNDED, pad_edge=not plain, padding=(0, 2, 0, 0) if plain else (0, 1))
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=plain)
    for row in rows:
        table.add_row(*map(Text, row))  # Text: brackets in a cell are not markup
    if title:
        console.print(title, markup=False, highlight=False, style=None if plain else "bold")
    console.print(table)
    if notes:
        console.print(notes, markup=False, highlight=False)


def size_text(count: int) -> str:
    """A number of bytes in the form `1.2 MB`."""
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def progress_note(message: str) -> None:
    """Print on standard error what a command is doing that takes seconds."""
    typer.echo(f"{message} …", err=True)
