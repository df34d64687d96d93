"""`tidal build` with the arguments of a command line, run in this process."""

from __future__ import annotations

from typing import NamedTuple

import typer
from typer.testing import CliRunner

from tidal_builders.commands.build import build


class Done(NamedTuple):
    """Exit code, standard output and standard error."""

    code: int
    stdout: str
    stderr: str


def tidal_build(*arguments: object) -> Done:
    app = typer.Typer()
    app.command()(build)
    environment = {"COLUMNS": "60", "TERM": "dumb", "NO_COLOR": "1"}
    result = CliRunner().invoke(app, [str(each) for each in arguments], env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, result.stdout, result.stderr)
