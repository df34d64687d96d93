"""`tidal models allocate`: show or change the instances of a partitioned model's runtimes."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tidal.catalog.graph import PartitionedModel
from tidal.commands.connecting import DEFAULT_REPOSITORY, AsJson, Server, server_of
from tidal.commands.output import one_sentence, print_json, print_table
from tidal.errors import InvalidArgument, NotFound, Unavailable
from tidal.repository.allocation import make_allocation, read_allocation
from tidal.server.allocate import (
    LiveFront,
    allocate,
    check_one_server,
    format_counts,
    partitioned_model,
    plan_steps,
    wanted_now,
    write_wanted,
)
from tidal.server.connection import ServerConnection

#: Instances of runtimes on the command line.
Counts = Annotated[
    list[str] | None,
    typer.Argument(metavar="[N=COUNT]...", help="Instances of the runtime with max_length N; others are not changed."),
]
_COUNT = re.compile(r"([1-9]\d*)=(\d+)", re.ASCII)


def allocate_instances(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of a partitioned model.")],
    counts: Counts = None,
    repository: Annotated[
        Path | None, typer.Option(help="Model repository; else the running server's, else ./model_repository.")
    ] = None,
    server: Server = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and change nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show or change the number of instances of each runtime of a partitioned model.

    A running `tidal serve` changes them without losing a request: the model stops using instances that will be removed,
    the runtimes are loaded with their new numbers, and the model starts to use new instances. The command returns when
    that is done. If it is killed, run it again with the same counts, or restart `tidal serve`, to complete the change.
    Without a server the counts take effect at the next start.

    A runtime with 0 instances is not loaded, and its queries go to longer runtimes. The longest one needs at least 1.
    The counts are kept in `MODEL/allocation.json` through publishes; `tidal models list` shows them.

    ```
    tidal models allocate intents                 present counts
    tidal models allocate intents 64=2 512=1
    tidal models allocate intents 64=0 --dry-run
    ```

    Exit codes:

    - **0** shown, changed, or already as requested
    - **1** the model does not exist or is not partitioned, the counts are not valid, or the change was not completed
    - **2** wrong usage
    - **3** the named server does not answer, or several run and none was named
    """
    connection = server_of(repository, server)
    with one_sentence():
        where = _repository(connection, repository)
        found = partitioned_model(where, model)
        front = _live(connection, where, found)
        before = wanted_now(where, found)
        wanted = {**before, **parse_counts(counts or [], found.name, found.lengths)}
        if not counts:
            _show(front, where, found, before, as_json)
            return
        make_allocation(wanted)
        steps = plan_steps(model, front.loaded(), wanted) if front is not None else []
        done: dict[str, Any] = {"model": model, "before": before, "instances": wanted, "serves": front is not None}
        done["steps"] = [[str(step) for step in batch] for batch in steps]
        if dry_run:
            lines = [", ".join(map(str, batch)) for batch in steps] or ["no model would be loaded"]
        elif front is None:
            check_one_server(where, model, connection.state.metrics if connection and connection.state else None)
            write_wanted(where, found, wanted)
            when = "at the next start of tidal serve" if connection is None else "when this version is loaded"
            lines = [f"{model}: {format_counts(wanted)} {when}"]
        else:
            lines = []
            allocate(front, wanted, (lambda _line: None) if as_json else typer.echo)
        if as_json:
            print_json({**done, "dry_run": dry_run})
        for line in lines if not as_json else ():
            typer.echo(line)


def _repository(connection: ServerConnection | None, repository: Path | None) -> Path:
    if connection is not None:
        if connection.state is None:
            address = connection.control.address
            raise Unavailable(
                f"the server at {address} is not a tidal serve of this user; allocations apply to those only"
            )
        return connection.state.repository
    where = repository if repository is not None else DEFAULT_REPOSITORY
    if not where.is_dir():
        raise NotFound(f"model repository '{where}' is not a folder")
    return where


def _live(connection: ServerConnection | None, repository: Path, partitioned: PartitionedModel) -> LiveFront | None:
    """The partitioned model on the server; None where it does not serve."""
    if connection is None or connection.state is None:
        return None
    front = LiveFront(connection.control, connection.state.metrics, repository, partitioned)
    return front if front.serves() else None


def parse_counts(counts: Sequence[str], model: str, lengths: Collection[int]) -> dict[int, int]:
    """Return instances by max_length in tokens.

    Args:
        counts: Counts as `N=COUNT`.
        model: Name of the model, for errors.
        lengths: The runtimes' `max_length` in tokens.

    Raises:
        InvalidArgument: A count has another form, names no runtime, or one that another count names.
    """
    found: dict[int, int] = {}
    for text in counts:
        match = _COUNT.fullmatch(text)
        if match is None:
            raise InvalidArgument(f"'{text}' is not valid: expected N=COUNT, for example {max(lengths)}=1")
        length = int(match.group(1))
        if length not in lengths:
            accepted = ", ".join(map(str, lengths))
            raise InvalidArgument(f"'{text}': {model} has no runtime with max_length {length}; accepted are {accepted}")
        if length in found:
            raise InvalidArgument(f"'{text}': max_length {length} is given twice")
        found[length] = int(match.group(2))
    return found


def _show(
    front: LiveFront | None, repository: Path, partitioned: PartitionedModel, wanted: dict[int, int], as_json: bool
) -> None:
    loaded = front.loaded() if front is not None else {}
    versions = front.used() if front is not None else []
    used = versions[-1] if versions else {}
    allocation = read_allocation(repository / partitioned.name)
    unfinished = (allocation is not None and allocation.loaded is not None) or (bool(loaded) and loaded != wanted)
    if as_json:
        print_json(
            {
                "model": partitioned.name,
                "instances": wanted,
                "loaded": loaded or None,
                "used": used or None,
                "set": allocation is not None,
                "unfinished": unfinished,
            }
        )
        return
    rows = [
        (str(n), str(wanted[n]), str(loaded.get(n, "-")), str(used.get(n, "-")), partitioned.runtime_models[n])
        for n in partitioned.lengths
    ]
    notes = (
        "" if allocation is not None else "No allocation is set: the counts are those of the runtimes' config.pbtxt."
    )
    if unfinished:
        notes = (
            f"A change is incomplete: complete it with tidal models allocate {partitioned.name} {format_counts(wanted)}"
        )
    print_table(("MAX LENGTH", "WANTED", "LOADED", "USED", "MODEL"), rows, title=partitioned.name, notes=notes)
