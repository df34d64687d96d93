"""`tidal tasks add` and `tidal tasks train`: import tasks from other tools, and train tasks."""

from __future__ import annotations

import re
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
from tidal_builders.fingerprint import source_folder

# Owner and name on the Hugging Face hub.
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
Labels = Annotated[
    str | None, typer.Option(metavar="A,B,...", help="Names of the classes; default: those of the source or data.")
]
Replace = Annotated[bool, typer.Option("--replace", help="Replace an existing task of this name.")]


def add(
    model: Model,
    source: Annotated[
        str,
        typer.Argument(
            help="Folder of a stored task, of peft or AdapterHub, of a checkpoint, or with prompts; or a Hugging Face "
            "id."
        ),
    ],
    name: Annotated[str | None, typer.Option(help="Name of the task; default: that of the folder.")] = None,
    labels: Labels = None,
    half: Annotated[bool, typer.Option("--half", help="Texts only: store values as float16.")] = False,
    replace: Replace = False,
    sparsity: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Checkpoints: share of the base's weights that stay unchanged. Default: the first of 0.995, 0.99, "
            "0.98, 0.95, 0.9, 0.8, 0.5 and 0 that reaches --min-agreement.",
        ),
    ] = None,
    min_agreement: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Encoders: minimum share of outputs that agree with the source model (default 0.95); with --data, the "
            "accuracy may fall by up to 1 minus this value (default 0.98).",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Data to measure accuracy on. Checkpoints: labelled queries (.tsv, .csv, .jsonl); vision: labelled "
            "images (one folder per label, or .npz)."
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="Encoders: what the head's outputs mean, where the source leaves a choice: rerank instead of "
            "regression, multi-label instead of classification, embedding, or sparse-embedding instead of fill-mask."
        ),
    ] = None,
    pooling: Annotated[
        str | None,
        typer.Option(
            help="Encoders: how hidden states become an embedding (mean, cls, max, lasttoken, weightedmean, "
            "mean_sqrt_len_tokens). Default: as the files of sentence-transformers say."
        ),
    ] = None,
    impossible_answers: Annotated[
        bool,
        typer.Option(
            "--impossible-answers",
            help="Tasks of question-answering: whether the empty answer (the context has no answer) is accepted.",
        ),
    ] = False,
    max_answer_tokens: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Tasks of question-answering: longest answer in tokens. Default: 15."),
    ] = None,
    base_model: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the base that the task was trained on, in Hugging Face's format; needed if the adapter's "
            "own name for it cannot be resolved."
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Add the task even if its base or outputs differ or cannot be compared."),
    ] = False,
    repository: Repository = None,
    as_json: AsJson = False,
) -> None:
    """Add a task from a folder; its files decide how it is imported.

    To any model:

    - a **stored task** (`task.json`) of the same base is copied

    To an encoder (kind pets):

    - **peft**: LoRA with the head of its task_type (SEQ_CLS, TOKEN_CLS, QUESTION_ANS, FEATURE_EXTRACTION), or of a
      masked language model; DoRA and changes of other weights are refused
    - **AdapterHub**: Houlsby's and Pfeiffer's adapters with their head
    - a **checkpoint** fine-tuned from the base: imported as BitFit if only biases and normalisations
      differ, else as the largest differences of its weights over the whole model: the fewest that keep its answers, or
      as many as `--sparsity` allows

    To a vision transformer (kind otas):

    - a **head and prompts**: `task.safetensors` with `head.weight`, `head.bias` and `prompts.<γ>` [layers, γ, width]
      for every γ above 0 of the model (and `head.<γ>.weight`, `head.<γ>.bias` where a γ has its own), and
      `labels.json` or `--labels`. Its accuracy at each γ is measured on `--data` with the model's engines.

    To a decoder (kind flover):

    - **peft**: LoRA on linear layers of the attention and feed-forward parts only

    An imported task is stored, read back and run on the same texts as the unmodified source model (`--data`, or
    generated texts). It is added if the outputs agree; the comparison is printed. An adapter must be trained on this
    model's own base: the weights are compared if the base that it names is on this machine or given by `--base-model`.

    Pickled weights are never read.

    Exit codes: **0** added, **1** refused, **2** the extra that imports tasks is not installed.
    """
    with one_sentence():
        _, own = find_task_model(repository, model)
        folder = Path(source).expanduser()
        if not folder.exists() and _HUB_ID.fullmatch(source):
            folder = source_folder(source, None, Path(), named="source")
        new = NewTask(
            source=folder,
            name=name if name is not None else Path(source).resolve().name,
            labels=_split(labels),
            half=half,
            sparsity=sparsity,
            data=data,
            base_model=base_model,
            replace=replace,
            force=force,
            min_agreement=min_agreement,
            task=task,
            pooling=pooling,
            impossible_answers=impossible_answers,
            max_answer_tokens=max_answer_tokens,
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
    data: Annotated[Path, typer.Argument(help="Labelled images: a folder with one folder per label, or .npz.")],
    name: Annotated[str | None, typer.Option(help="Name of the task; default: that of the folder or file.")] = None,
    labels: Labels = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the images; with --patience, at most.")] = 50,
    patience: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Stop training a γ's prompts after this many passes without a higher accuracy on validation images (a "
            "tenth of the training images), and keep the best pass. Default: all --epochs, on all training images.",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images per step.")] = 32,
    rate: Annotated[float, typer.Option(help="Maximum learning rate.")] = 0.002,
    replace: Replace = False,
    repository: Repository = None,
    as_json: AsJson = False,
) -> None:
    """Train a task of a vision transformer (kind otas), measure its accuracy at every γ, and add it.

    A head is trained for every γ, and prompts for those above 0, on four fifths of the images; accuracy is measured on
    the others. The transformer itself is not changed. An interrupted training resumes after its last pass.

    Exit codes: **0** added, **1** refused, **2** the extra that trains tasks is not installed.
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
            patience=patience,
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
