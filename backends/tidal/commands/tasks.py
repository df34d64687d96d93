"""`tidal tasks`: lists, shows and removes the tasks of a model.

Commands that need a builder are installed by the entry-point group `tidal.tasks`: `add` and `train`.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer

from tidal.catalog.graph import ModelGraph
from tidal.commands.connecting import AsJson
from tidal.commands.output import fail, one_sentence, print_json, print_table, size_text
from tidal.commands.task_models import Model, Repository, find_task_model
from tidal.commands.task_views import ModelTasks, record_data, task_data
from tidal.errors import InvalidArgument, TidalError
from tidal.tasks.folder import remove_task, scan, tasks_folder
from tidal.tasks.record import LabelledRecord, TaskRecord

GROUP = "tidal.tasks"

tasks = typer.Typer(
    rich_markup_mode="markdown",
    no_args_is_help=True,
    add_completion=False,
    help="""List, add, train and remove the tasks of a model.

A task is a folder beside the model's versions. A running server detects added, changed and removed tasks: no model is
reloaded, and requests for other tasks are not disturbed.

```
tidal tasks list encoder                       tasks and their sizes
tidal tasks add encoder ./my-lora --name mood  from peft, AdapterHub, a
                                               fine-tuned checkpoint, or
                                               a stored task
tidal tasks train vision ./birds --name birds  a task on images
tidal tasks show encoder mood                  verify and describe a task
tidal tasks remove encoder mood
```

Exit codes:

- **0** done
- **1** the model or task does not exist, or the source is refused
- **2** wrong usage, or the extra that the command needs is not installed
""",
)


@tasks.command("list")
def list_tasks(model: Model, repository: Repository = None, as_json: AsJson = False) -> None:
    """List a model's tasks: kind, labels, bytes stored and in memory, and whether they fit the model's base.

    Only `task.json` is read; `tidal tasks show` also verifies a task's parameters.

    Exit codes: **0** listed, **1** no such model.
    """
    with one_sentence():
        entry, own = find_task_model(repository, model)
        digest, folder = own.digest, tasks_folder(entry.folder)
        rows = [_row(own, folder, name, digest) for name in scan(folder)]
    if as_json:
        print_json([{name: value for name, value in row.items() if name != "origin"} for row in rows])
        return
    columns = ("TASK", "KIND", "LABELS", "STORED", "IN MEMORY", "FROM", "ADDED", "STATE")
    print_table(columns, [_cells(row) for row in rows])


@tasks.command()
def show(
    model: Model,
    task: Annotated[str, typer.Argument(metavar="TASK", help="Name of the task.")],
    repository: Repository = None,
    as_json: AsJson = False,
) -> None:
    """Verify a task as a server does, and print what it is, what it changes and where it came from.

    Exit codes: **0** it can be served, **1** there is no such task, or it is refused.
    """
    with one_sentence():
        _, own = find_task_model(repository, model)
        view = own.show(task)
    record = view.record
    if as_json:
        print_json(task_data(view))
        return
    lines = {
        "task": view.name,
        **view.lines,
        **_labels(record),
        "stored": size_text(record.tensors.bytes),
        "in memory": ", ".join(filter(None, [size_text(record.memory_bytes), view.memory])),
        "base": record.base,
        "added": record.created,
    }
    width = max(map(len, lines)) + 2
    for title, text in lines.items():
        typer.echo(f"{title:<{width}}{text}")
    for line in view.notes:
        typer.echo(line)


@tasks.command()
def remove(
    model: Model,
    names: Annotated[list[str], typer.Argument(metavar="TASK...", help="Names of the tasks.")],
    force: Annotated[bool, typer.Option("--force", help="Also remove tasks that are levels of cascades.")] = False,
    repository: Repository = None,
) -> None:
    """Remove tasks. Requests that a server is processing with them are still answered.

    A task that is a level of a cascade is refused, because the cascade could not call it any more.

    Exit codes: **0** done, **1** a task was not found or is a level of a cascade; the other tasks are removed.
    """
    failures = []
    with one_sentence():
        entry, _ = find_task_model(repository, model)
    for name in names:
        try:
            users = [] if force else ModelGraph.read(entry.folder.parent).cascades_over(model, name)
            if users:
                raise InvalidArgument(
                    f"task '{name}' is a level of {', '.join(users)}: remove it with --force, after which a cascade "
                    "answers without it where it can"
                )
            remove_task(tasks_folder(entry.folder), name)
            typer.echo(f"removed task '{name}' from {model}")
        except TidalError as error:
            failures.append(str(error))
    if failures:
        fail("; ".join(failures))


def _labels(record: TaskRecord) -> dict[str, str]:
    if not isinstance(record, LabelledRecord):
        return {}
    return {"labels": f"{len(record.labels)}: {', '.join(record.labels)}"}


def _row(own: ModelTasks, folder: Path, name: str, digest: str) -> dict[str, Any]:
    """A task by its `task.json`, or the error if that is refused."""
    try:
        record, kind, origin = own.read(folder / name)
    except TidalError as error:
        return {"task": name, "state": str(error)}
    state = "fits" if record.base == digest else f"made for another base ({record.base[:12]}…)"
    return record_data(name, record) | {"kind": kind, "origin": origin, "state": state}


def _cells(row: dict[str, Any]) -> list[str]:
    if "kind" not in row:
        return [row["task"], *["-"] * 6, row["state"]]
    stored, memory = size_text(row["tensors"]["bytes"]), size_text(row["memory_bytes"])
    labels = str(len(row["labels"])) if "labels" in row else "-"
    return [row["task"], row["kind"], labels, stored, memory, row["origin"], row["created"], row["state"]]


for _entry in entry_points(group=GROUP):
    tasks.command(_entry.name)(_entry.load())
