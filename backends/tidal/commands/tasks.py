"""`tidal tasks`: the fine-tuned tasks beside a model, and adding and removing them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from tidal.commands.connecting import DEFAULT_REPOSITORY, AsJson
from tidal.commands.output import fail, one_sentence, print_json, print_table
from tidal.errors import InvalidArgument, NotFound, TidalError, did_you_mean
from tidal.pets.base import BASE_FILE, load_base_info, load_base_layers
from tidal.pets.kinds.kind import Storage, find_kind
from tidal.pets.tasks.facts import facts_of
from tidal.pets.tasks.folder import Task, add_task, copy_task, load_task
from tidal.pets.tasks.manifest import TaskInfo, read_task_info
from tidal.repository import ModelEntry, model_entries
from tidal.server.state import running_servers
from tidal.tasks.folder import remove_task, scan, tasks_folder
from tidal.tasks.record import TASK_FILE

MISSING_EXTRA = 2

tasks = typer.Typer(
    rich_markup_mode="markdown",
    no_args_is_help=True,
    add_completion=False,
    help="""List, add and remove the fine-tuned tasks of a model.

A task is a folder beside the model's versions. A server notices by itself that one was added, changed or removed:
nothing is reloaded, and other tasks' queries are not disturbed.

```
tidal tasks list encoder                       what there is, and its size
tidal tasks add encoder ./my-lora --name mood  from peft, AdapterHub, a
                                               fine-tuned checkpoint, or
                                               a task stored elsewhere
tidal tasks show encoder mood                  verify it, say what it changes
tidal tasks remove encoder mood
```

Exit codes:

- **0** done
- **1** no such model or task, or the source is refused, and why
- **2** wrong usage, or the extra that imports is not installed
""",
)

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Model that serves tasks, by name.")]
Repository = Annotated[
    Path | None,
    typer.Option(help="Model repository; else the running server's, if one runs, else ./model_repository."),
]


@tasks.command("list")
def list_tasks(model: Model, repository: Repository = None, as_json: AsJson = False) -> None:
    """List a model's tasks: kind, labels, bytes stored and in memory, and whether they fit the model's base.

    Only `task.json` is read; `tidal tasks show` verifies a task's parameters too.

    Exit codes: **0** listed, **1** no such model.
    """
    with one_sentence():
        entry, version = _model(repository, model)
        digest = load_base_info(version).digest
        folder = tasks_folder(entry.folder)
        rows = [_row(folder, name, digest) for name in scan(folder)]
    if as_json:
        print_json(rows)
        return
    columns = ("TASK", "KIND", "LABELS", "STORED", "IN MEMORY", "FROM", "ADDED", "STATE")
    print_table(columns, [_shown(row) for row in rows])


@tasks.command()
def add(
    model: Model,
    source: Annotated[Path, typer.Argument(help="Folder: a stored task, peft, AdapterHub, or a checkpoint.")],
    name: Annotated[str | None, typer.Option(help="The task's name; default: the folder's.")] = None,
    labels: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Names of the classes; default: the source's.")
    ] = None,
    half: Annotated[bool, typer.Option("--half", help="Store values as float16, in half the bytes.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the task of this name.")] = False,
    sparsity: Annotated[
        float, typer.Option(min=0, max=1, help="Checkpoints: share of the weights that stay the base's.")
    ] = 0.995,
    data: Annotated[
        Path | None, typer.Option(help="Checkpoints: labelled queries (.tsv, .csv, .jsonl) to measure accuracy on.")
    ] = None,
    base_model: Annotated[
        Path | None,
        typer.Option(help="Checkpoints: the base in Hugging Face's format, where accuracy cannot be had without."),
    ] = None,
    repository: Repository = None,
    as_json: AsJson = False,
) -> None:
    """Add a task from a folder; what the folder is is recognised by its files.

    - a **stored task** (`task.json`) of the same base is copied
    - **peft**: LoRA with a classifier; DoRA and whatever changes other weights is refused
    - **AdapterHub**: Houlsby adapters with their head
    - a **checkpoint** of a classifier fine-tuned from the base: BitFit where only biases and normalisations differ,
      else the largest differences of its weights, over the whole model, as many as `--sparsity` leaves

    Pickled weights are never read.

    Exit codes: **0** added, **1** refused, and why, **2** the extra that imports is not installed.
    """
    with one_sentence():
        entry, version = _model(repository, model)
        base, folder = load_base_layers(version), tasks_folder(entry.folder)
        chosen = name if name is not None else source.resolve().name
        if (source / TASK_FILE).is_file():
            if labels is not None or half:
                raise InvalidArgument(
                    f"{source} is a stored task, which is copied as it is: without --labels and --half"
                )
            task = copy_task(folder, chosen, source, base, replace=replace)
        else:
            try:
                from tidal_builders.pets.importing.found import Base, Wishes
                from tidal_builders.pets.importing.recognise import import_task
            except ModuleNotFoundError as error:
                fail(f"to import a task needs {error.name}: pip install 'tidal[build]'", MISSING_EXTRA)
            named = tuple(label.strip() for label in labels.split(",")) if labels is not None else None
            wishes = Wishes(named, sparsity, data, base_model)
            found = import_task(source, Base(base, load_base_info(version)), wishes)
            task = add_task(
                folder, chosen, found.kind, found.terms, base, found.provenance, storage=Storage(half), replace=replace
            )
    facts = facts_of(task.terms, base)
    if as_json:
        print_json(_described(task.name, task.info) | {"changes": asdict(facts)})
        return
    typer.echo(
        f"added task '{task.name}' to {model}: {facts.sentence()}; {_size(task.info.tensors.bytes)} stored, "
        f"{_size(task.info.memory_bytes)} in memory ({facts.memory_share:.1%} of the base's layers)"
    )
    for line in _story(task.info):
        typer.echo(line)


@tasks.command()
def show(
    model: Model,
    task: Annotated[str, typer.Argument(metavar="TASK", help="Task by name.")],
    repository: Repository = None,
    as_json: AsJson = False,
) -> None:
    """Verify a task as a server does, and say what it is, what it changes and where it came from.

    Exit codes: **0** it can be served, **1** no such task, or it is refused, and why.
    """
    with one_sentence():
        entry, version = _model(repository, model)
        base = load_base_layers(version)
        found: Task = load_task(tasks_folder(entry.folder), task, base)
    info, facts = found.info, facts_of(found.terms, base)
    if as_json:
        print_json(_described(found.name, info) | {"changes": asdict(facts)})
        return
    lines = {
        "task": found.name,
        "kind": f"{info.kind}: {find_kind(info.kind).title}",
        "changes": facts.sentence(),
        "labels": f"{len(info.labels)}: {', '.join(info.labels)}",
        "stored": _size(info.tensors.bytes),
        "in memory": f"{_size(found.terms.bytes)}, {facts.memory_share:.1%} of the base's layers",
        "base": info.base,
        "from": f"{info.provenance.format}, {info.provenance.source}",
        "added": info.created,
    }
    width = max(map(len, lines)) + 2
    for title, text in lines.items():
        typer.echo(f"{title:<{width}}{text}")
    for line in _story(info):
        typer.echo(line)


@tasks.command()
def remove(
    model: Model,
    names: Annotated[list[str], typer.Argument(metavar="TASK...", help="Tasks by name.")],
    repository: Repository = None,
) -> None:
    """Remove tasks; queries that a server is answering with them are still answered.

    Exit codes: **0** done, **1** one was not found; the others are removed.
    """
    failures = []
    with one_sentence():
        entry, _ = _model(repository, model)
    for name in names:
        try:
            remove_task(tasks_folder(entry.folder), name)
            typer.echo(f"removed task '{name}' from {model}")
        except TidalError as error:
            failures.append(str(error))
    if failures:
        fail("; ".join(failures))


def _model(repository: Path | None, name: str) -> tuple[ModelEntry, Path]:
    """A model that serves tasks, and its newest version."""
    if repository is None:
        servers = running_servers()
        repository = servers[0].repository if len(servers) == 1 else DEFAULT_REPOSITORY
    if not repository.is_dir():
        raise InvalidArgument(f"model repository '{repository}' is not a folder; name one by --repository")
    entries = {entry.name: entry for entry in model_entries(repository)}
    if name not in entries:
        raise NotFound(f"there is no model '{name}' in {repository}: {did_you_mean(name, entries)}")
    version = entries[name].latest()
    if version is None:
        raise InvalidArgument(f"model '{name}' has no published version; build it with `tidal build`")
    if not (version / BASE_FILE).is_file():
        raise InvalidArgument(f"model '{name}' serves no tasks: only those built from a spec of kind pets do")
    return entries[name], version


def _described(name: str, info: TaskInfo) -> dict[str, Any]:
    return {"task": name, **info.model_dump(mode="json", exclude={"format"})}


def _row(folder: Path, name: str, digest: str) -> dict[str, Any]:
    """A task by its `task.json`; where that is refused, why."""
    try:
        info = read_task_info(folder / name)
        find_kind(info.kind)
    except TidalError as error:
        return {"task": name, "state": str(error)}
    state = "fits" if info.base == digest else f"made for another base ({info.base[:12]}…)"
    return _described(name, info) | {"state": state}


def _shown(row: dict[str, Any]) -> list[str]:
    if "kind" not in row:
        return [row["task"], *["-"] * 6, row["state"]]
    stored, memory = _size(row["tensors"]["bytes"]), _size(row["memory_bytes"])
    origin, labels = row["provenance"]["format"], str(len(row["labels"]))
    return [row["task"], row["kind"], labels, stored, memory, origin, row["created"], row["state"]]


def _story(info: TaskInfo) -> list[str]:
    """What is to be said of where a task came from."""
    kept = info.provenance.kept
    lines = [f"note: {note}" for note in info.provenance.notes]
    if kept is not None:
        lines.append(
            f"accuracy on {kept.rows} queries: {kept.accuracy:.2%}; the checkpoint's: {kept.source_accuracy:.2%}"
        )
    return lines


def _size(count: int) -> str:
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
