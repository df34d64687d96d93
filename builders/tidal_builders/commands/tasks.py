"""`tidal tasks add` and `tidal tasks train`: import tasks from other tools, and train tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidal.commands.connecting import AsJson
from tidal.commands.decoder_tasks import DecoderTasks
from tidal.commands.output import one_sentence, print_json, size_text
from tidal.commands.task_models import Model, Repository, find_task_model
from tidal.commands.task_views import TaskView, task_data
from tidal.commands.vision_tasks import VisionTasks
from tidal.errors import InvalidArgument
from tidal_builders.commands.add_decoder_task import add_decoder_task
from tidal_builders.commands.add_encoder_task import add_encoder_task
from tidal_builders.commands.add_vision_task import TaskTraining, add_vision_task, train_vision_task
from tidal_builders.commands.new_task import NewTask

Labels = Annotated[
    str | None, typer.Option(metavar="A,B,...", help="Names of the classes; default: those of the source or data.")
]
Replace = Annotated[bool, typer.Option("--replace", help="Replace an existing task of this name.")]


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
        _, own = find_task_model(repository, model)
        new = NewTask(
            source=source,
            name=name if name is not None else source.resolve().name,
            labels=_split(labels),
            half=half,
            sparsity=sparsity,
            data=data,
            base_model=base_model,
            replace=replace,
            force=force,
            min_agreement=min_agreement,
        )
        if isinstance(own, VisionTasks):
            view = add_vision_task(own, new)
        elif isinstance(own, DecoderTasks):
            view = add_decoder_task(own, new)
        else:
            view = add_encoder_task(own, new)
    _print_added(view, model, as_json)


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
        _, own = find_task_model(repository, model)
        if not isinstance(own, VisionTasks):
            raise InvalidArgument(
                f"'{model}' is not a vision transformer; train its tasks with other tools and import them with "
                "`tidal tasks add`"
            )
        if not rate > 0:
            raise InvalidArgument(f"--rate must be greater than 0, got {rate:g}")
        training = TaskTraining(
            data=data,
            name=name if name is not None else data.resolve().stem,
            labels=_split(labels),
            epochs=epochs,
            batch=batch,
            rate=rate,
            replace=replace,
        )
        view = train_vision_task(own, training)
    _print_added(view, model, as_json)


def _split(labels: str | None) -> tuple[str, ...] | None:
    return None if labels is None else tuple(label.strip() for label in labels.split(","))


def _print_added(view: TaskView, model: str, as_json: bool) -> None:
    if as_json:
        print_json(task_data(view))
        return
    memory = f" ({view.memory})" if view.memory else ""
    record = view.record
    typer.echo(
        f"added task '{view.name}' to {model}: {view.summary}; {size_text(record.tensors.bytes)} stored, "
        f"{size_text(record.memory_bytes)} in memory{memory}"
    )
    for line in view.notes:
        typer.echo(line)
