"""`tidal tasks`: the tasks beside a model, and adding, training and removing them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tidal.commands.connecting import DEFAULT_REPOSITORY, AsJson
from tidal.commands.decoder_tasks import DecoderTasks
from tidal.commands.encoder_tasks import EncoderTasks
from tidal.commands.output import fail, one_sentence, print_json, print_table, size_text
from tidal.commands.task_kind import Adding, TaskKind, Told
from tidal.commands.vision_tasks import Training, VisionTasks
from tidal.errors import InvalidArgument, NotFound, TidalError, did_you_mean
from tidal.flover.manifest import FloverManifest
from tidal.manifest import MANIFEST_FILE
from tidal.otas.manifest import OtasManifest
from tidal.pets.base import BASE_FILE
from tidal.repository.entries import ModelEntry, model_entries
from tidal.repository.graph import ModelGraph
from tidal.repository.published import load_published
from tidal.server.state import running_servers
from tidal.tasks.folder import remove_task, scan, tasks_folder
from tidal.tasks.record import LabelledRecord, TaskRecord

tasks = typer.Typer(
    rich_markup_mode="markdown",
    no_args_is_help=True,
    add_completion=False,
    help="""List, add, train and remove the tasks of a model.

A task is a folder beside the model's versions. A server notices by itself that one was added, changed or removed:
nothing is reloaded, and other tasks' queries are not disturbed.

```
tidal tasks list encoder                       what there is, and its size
tidal tasks add encoder ./my-lora --name mood  from peft, AdapterHub, a
                                               fine-tuned checkpoint, or
                                               a task stored elsewhere
tidal tasks train vision ./birds --name birds  a task of images
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
Labels = Annotated[
    str | None, typer.Option(metavar="A,B,...", help="Names of the classes; default: those of the source or data.")
]
Replace = Annotated[bool, typer.Option("--replace", help="Replace the task of this name.")]


@tasks.command("list")
def list_tasks(model: Model, repository: Repository = None, as_json: AsJson = False) -> None:
    """List a model's tasks: kind, labels, bytes stored and in memory, and whether they fit the model's base.

    Only `task.json` is read; `tidal tasks show` verifies a task's parameters too.

    Exit codes: **0** listed, **1** no such model.
    """
    with one_sentence():
        entry, kind = _model(repository, model)
        digest, folder = kind.digest, tasks_folder(entry.folder)
        rows = [_row(kind, folder, name, digest) for name in scan(folder)]
    if as_json:
        print_json([{name: value for name, value in row.items() if name != "origin"} for row in rows])
        return
    columns = ("TASK", "KIND", "LABELS", "STORED", "IN MEMORY", "FROM", "ADDED", "STATE")
    print_table(columns, [_shown(row) for row in rows])


@tasks.command()
def add(
    model: Model,
    source: Annotated[Path, typer.Argument(help="Folder: a stored task, peft, AdapterHub, a checkpoint, or prompts.")],
    name: Annotated[str | None, typer.Option(help="The task's name; default: the folder's.")] = None,
    labels: Labels = None,
    half: Annotated[bool, typer.Option("--half", help="All but vision: store values as float16.")] = False,
    replace: Replace = False,
    sparsity: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Checkpoints: share of the weights that stay the base's. Default: the first of 0.995, 0.99, 0.98, "
            "0.95, 0.9, 0.8, 0.5 and 0 that --min-agreement accepts.",
        ),
    ] = None,
    min_agreement: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Encoders: least agreement with the source model's answers (default 0.95); with --data, accuracy may "
            "fall by up to 1 less this (default 0.98).",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="What accuracy is measured on. Checkpoints: labelled queries (.tsv, .csv, .jsonl); vision: labelled "
            "images (a folder a label, or .npz)."
        ),
    ] = None,
    base_model: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the base that it was trained on, in Hugging Face's format, where its name does not find it."
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Add it although its base or its answers differ, or cannot be compared."),
    ] = False,
    repository: Repository = None,
    as_json: AsJson = False,
) -> None:
    """Add a task from a folder; what the folder is is recognised by its files.

    To any model:

    - a **stored task** (`task.json`) of the same base is copied

    To an encoder (kind pets):

    - **peft**: LoRA with a classifier; DoRA and whatever changes other weights is refused
    - **AdapterHub**: Houlsby adapters with their head
    - a **checkpoint** of a classifier fine-tuned from the base: BitFit where only biases and normalisations differ,
      else the largest differences of its weights, over the whole model: as few as keep its answers, or as many as
      `--sparsity` leaves

    To a vision transformer (kind otas):

    - a **head and prompts**: `task.safetensors` with `head.weight`, `head.bias` and `prompts.<γ>` [layers, γ, width]
      for every γ above 0 of the model (and `head.<γ>.weight`, `head.<γ>.bias` where a γ has its own), and
      `labels.json` or `--labels`. How often it is right at each γ is measured on `--data` with the model's engines.

    To a decoder (kind flover):

    - **peft**: LoRA on the attention's and feed-forward parts' linear layers, and nothing else

    An import is stored, read back, and asked the same texts as the unmodified model that it was made of (`--data`, or
    made texts). It is added if the answers agree; what was compared is printed. An adapter has to be trained on this
    model's own base: weights are compared where the base that it names is on this machine, or named by `--base-model`.

    Pickled weights are never read.

    Exit codes: **0** added, **1** refused, and why, **2** the extra that imports is not installed.
    """
    with one_sentence():
        _, kind = _model(repository, model)
        chosen = name if name is not None else source.resolve().name
        told = kind.add(
            Adding(source, chosen, _split(labels), half, sparsity, data, base_model, replace, force, min_agreement)
        )
    _added(told, model, as_json)


@tasks.command()
def train(
    model: Model,
    data: Annotated[Path, typer.Argument(help="Labelled images: a folder with a folder a label, or .npz.")],
    name: Annotated[str | None, typer.Option(help="The task's name; default: the folder's or file's.")] = None,
    labels: Labels = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the images.")] = 50,
    batch: Annotated[int, typer.Option(min=1, help="Images in a step.")] = 32,
    rate: Annotated[float, typer.Option(help="Largest learning rate.")] = 0.002,
    replace: Replace = False,
    repository: Repository = None,
    as_json: AsJson = False,
) -> None:
    """Train a task of a vision transformer (kind otas), measure its accuracy at every γ, and add it.

    A head is trained for every γ, and prompts for those above 0, on four fifths of the images; accuracy is measured on
    the others. The transformer itself stays as it is. A training that was killed goes on where it stopped.

    Exit codes: **0** added, **1** refused, and why, **2** the extra that trains is not installed.
    """
    with one_sentence():
        _, kind = _model(repository, model)
        if not isinstance(kind, VisionTasks):
            raise InvalidArgument(
                f"'{model}' is no vision transformer: its tasks are trained elsewhere and brought by `tidal tasks add`"
            )
        if not rate > 0:
            raise InvalidArgument(f"--rate {rate:g} is no learning rate; accepted are those above 0")
        chosen = name if name is not None else data.resolve().stem
        told = kind.train(Training(data, chosen, _split(labels), epochs, batch, rate, replace))
    _added(told, model, as_json)


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
        _, kind = _model(repository, model)
        found = kind.show(task)
    record = found.record
    if as_json:
        print_json(_described(found.name, record) | found.data)
        return
    lines = {
        "task": found.name,
        **found.lines,
        **_labels(record),
        "stored": size_text(record.tensors.bytes),
        "in memory": ", ".join(filter(None, [size_text(record.memory_bytes), found.memory])),
        "base": record.base,
        "added": record.created,
    }
    width = max(map(len, lines)) + 2
    for title, text in lines.items():
        typer.echo(f"{title:<{width}}{text}")
    for line in found.notes:
        typer.echo(line)


@tasks.command()
def remove(
    model: Model,
    names: Annotated[list[str], typer.Argument(metavar="TASK...", help="Tasks by name.")],
    force: Annotated[bool, typer.Option("--force", help="Also tasks that are levels of cascades.")] = False,
    repository: Repository = None,
) -> None:
    """Remove tasks; queries that a server is answering with them are still answered.

    A task that is a level of a cascade stays: the cascade could not ask it any more.

    Exit codes: **0** done, **1** one was not found, or is a level of a cascade; the others are removed.
    """
    failures = []
    with one_sentence():
        entry, _ = _model(repository, model)
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


def _model(repository: Path | None, name: str) -> tuple[ModelEntry, TaskKind]:
    """A model that serves tasks, and those of its newest version."""
    if repository is None:
        served = sorted({state.repository for state in running_servers()})
        if len(served) > 1:
            folders = ", ".join(map(str, served))
            raise InvalidArgument(f"several servers are running: choose a repository by --repository, {folders}")
        repository = served[0] if served else DEFAULT_REPOSITORY
    if not repository.is_dir():
        raise InvalidArgument(f"model repository '{repository}' is not a folder; name one by --repository")
    entries = {entry.name: entry for entry in model_entries(repository)}
    if name not in entries:
        raise NotFound(f"there is no model '{name}' in {repository}: {did_you_mean(name, entries)}")
    version = entries[name].latest()
    if version is None:
        raise InvalidArgument(f"model '{name}' has no published version; build it with `tidal build`")
    if (version / BASE_FILE).is_file():
        return entries[name], EncoderTasks(entries[name].folder, version)
    manifest = load_published(version) if (version / MANIFEST_FILE).is_file() else None
    if isinstance(manifest, OtasManifest):
        return entries[name], VisionTasks(entries[name].folder, version, manifest)
    if isinstance(manifest, FloverManifest):
        return entries[name], DecoderTasks(entries[name].folder, version, manifest)
    raise InvalidArgument(f"model '{name}' serves no tasks: only those of a spec of kind pets, otas or flover do")


def _split(labels: str | None) -> tuple[str, ...] | None:
    return None if labels is None else tuple(label.strip() for label in labels.split(","))


def _added(told: Told, model: str, as_json: bool) -> None:
    record = told.record
    if as_json:
        print_json(_described(told.name, record) | told.data)
        return
    memory = f" ({told.memory})" if told.memory else ""
    typer.echo(
        f"added task '{told.name}' to {model}: {told.summary}; {size_text(record.tensors.bytes)} stored, "
        f"{size_text(record.memory_bytes)} in memory{memory}"
    )
    for line in told.notes:
        typer.echo(line)


def _labels(record: TaskRecord) -> dict[str, str]:
    if not isinstance(record, LabelledRecord):
        return {}
    return {"labels": f"{len(record.labels)}: {', '.join(record.labels)}"}


def _described(name: str, record: TaskRecord) -> dict[str, Any]:
    return {"task": name, **record.model_dump(mode="json", exclude={"format"})}


def _row(kind: TaskKind, folder: Path, name: str, digest: str) -> dict[str, Any]:
    """A task by its `task.json`; where that is refused, why."""
    try:
        record, kind_name, origin = kind.read(folder / name)
    except TidalError as error:
        return {"task": name, "state": str(error)}
    state = "fits" if record.base == digest else f"made for another base ({record.base[:12]}…)"
    return _described(name, record) | {"kind": kind_name, "origin": origin, "state": state}


def _shown(row: dict[str, Any]) -> list[str]:
    if "kind" not in row:
        return [row["task"], *["-"] * 6, row["state"]]
    stored, memory = size_text(row["tensors"]["bytes"]), size_text(row["memory_bytes"])
    labels = str(len(row["labels"])) if "labels" in row else "-"
    return [row["task"], row["kind"], labels, stored, memory, row["origin"], row["created"], row["state"]]
