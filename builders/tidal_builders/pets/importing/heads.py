"""What the head of an imported task answers: its task of encoders, its labels and its settings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidal.encoder_tasks.entries import TASKS, task_entry
from tidal.errors import InvalidArgument, Unsupported, did_you_mean
from tidal.pets.heads import HEADS, POOLINGS
from tidal.text.tokenizer import open_tokenizer
from tidal_builders.foreign.recognise import Task, sentence_of
from tidal_builders.pets.importing.imported import ImportBase, ImportOptions, labels_of

if TYPE_CHECKING:
    from tidal_builders.pets.importing.sources import Tail


# Tasks of encoders that a model for a task may become; the first one unless the operator names another.
_CANDIDATES: Mapping[Task, tuple[str, ...]] = {
    "classification": ("classification", "multi-label"),
    "multi_label": ("multi-label",),
    "regression": ("regression", "rerank"),
    "token_classification": ("token-classification",),
    "question_answering": ("question-answering",),
    "embedding": ("embedding", "sparse-embedding"),
    "encoder": ("embedding",),
    "fill_mask": ("fill-mask", "embedding", "sparse-embedding"),
    "unknown": (
        "classification", "multi-label", "token-classification", "question-answering", "embedding", "fill-mask",
        "sparse-embedding",
    ),
}  # fmt: skip
_SCORE = "score"
_NUMBERED = re.compile(r"LABEL_\d+")


@dataclass(frozen=True, slots=True)
class HeadOf:
    """What an imported head answers.

    Attributes:
        task: Name of the task of encoders.
        labels: Names of the labels; empty if the task has none.
        settings: Settings of the task.
    """

    task: str
    labels: tuple[str, ...] = ()
    settings: Mapping[str, Any] | None = None

    def fields(self) -> dict[str, Any]:
        """Fields of `Head`, except its values."""
        return {"labels": self.labels, "task": self.task, "settings": dict(self.settings or {})}


def choose_task(found: Task, outputs: int | None, options: ImportOptions, source: Path) -> str:
    """The task of encoders that a head answers.

    Args:
        found: Task of the source model, as its files name it.
        outputs: Number of outputs of the head; None: it has no linear layer.
        options: Options of the import; `task` chooses among several.
        source: Folder of the source, for the error.

    Raises:
        Unsupported: No task with a shared encoder answers as the source does.
        InvalidArgument: `task` is another than the source's files permit.
    """
    if outputs == 1 and found in ("classification", "unknown"):
        found = "regression"
    candidates = [name for name in _CANDIDATES.get(found, ()) if name in HEADS and name in TASKS]
    if not candidates:
        raise Unsupported(f"{source} cannot be a task: it is {sentence_of(found)}")
    if options.task is None:
        wanted = "embedding" if options.pooling is not None else "sparse-embedding" if _has_splade(source) else ""
        return wanted if wanted in candidates else candidates[0]
    if options.task not in candidates:
        raise InvalidArgument(
            f"--task {options.task} does not fit {source}, which is for {found.replace('_', ' ')}: "
            f"{did_you_mean(options.task, candidates)}"
        )
    return options.task


def _has_splade(folder: Path) -> bool:
    """Whether the files of sentence-transformers name the pooling of a sparse embedding."""
    from tidal_builders.encoder_tasks.sentence_files import read_modules

    return any(module.kind == "SpladePooling" for module in read_modules(folder))


def head_labels(task: str, options: ImportOptions, named: Sequence[str] | None, outputs: int) -> tuple[str, ...]:
    """Names of a head's labels: the requested ones, else the source's.

    Args:
        task: Name of the task of encoders.
        options: Options of the import.
        named: Names in the source, or None.
        outputs: Number of outputs of the head.

    Raises:
        InvalidArgument: The task has another number of outputs, or no labels and some are requested, or there are no
            names or too few or many.
    """
    accepted = HEADS[task].outputs
    if accepted is not None and outputs != accepted:
        raise InvalidArgument(f"the head has {outputs} outputs; a head for {task} has {accepted}")
    if not task_entry(task).labelled:
        if options.labels is not None:
            raise InvalidArgument(f"--labels {','.join(options.labels)[:200]}: a task of {task} has no labels")
        return ()
    if options.labels is None and outputs == 1 and (named is None or all(map(_NUMBERED.fullmatch, named))):
        return (_SCORE,)
    return labels_of(options.labels, named, outputs)


def embedding_settings(options: ImportOptions, width: int, *folders: Path | None) -> tuple[dict[str, Any], Tail]:
    """Settings of an embedding, and the unmodified computation of it from hidden states.

    Args:
        options: Options of the import.
        width: Size of the hidden states.
        folders: Folders that may have the files of sentence-transformers; the first one that has is read.

    Raises:
        InvalidArgument: No file and no option says how to pool, or an option is for another task.
        Unsupported: The folder has layers after the pooling that a task cannot store.
    """
    from types import SimpleNamespace

    from tidal_builders.encoder_tasks.embedding import Dense, prepare_embedding  # torch: slow to load
    from tidal_builders.encoder_tasks.prepared import PrepareOptions

    _refuse_other_options("embedding", options)
    known = [folder for folder in folders if folder is not None]
    folder = next((each for each in known if (each / "modules.json").is_file()), known[0])
    if options.pooling is None and not (folder / "modules.json").is_file():
        raise InvalidArgument(
            f"{folder} has no modules.json that says how hidden states become an embedding; name it by --pooling: "
            f"{', '.join(POOLINGS)}"
        )
    # Without files of sentence-transformers vectors are normalised, as its similarities need it.
    normalize = None if (folder / "modules.json").is_file() else True
    config = SimpleNamespace(hidden_size=width)
    prepared = prepare_embedding(
        folder, SimpleNamespace(config=config), PrepareOptions(pooling=options.pooling, normalize=normalize)
    )
    if any(isinstance(layer, Dense) for layer in prepared.tail.modules()):
        raise Unsupported(f"{folder} has dense layers after its pooling, which a task cannot store")
    return dict(prepared.settings), prepared.tail


def rerank_settings(*folders: Path | None) -> dict[str, Any]:
    """Settings of a reranker: the function that its score is of the logit, as its files name it.

    Args:
        folders: Folders that may have a configuration of a cross-encoder; the first one that has is read.

    Raises:
        Unsupported: The function is not supported.
    """
    from tidal_builders.encoder_tasks.sentence_files import activation_of

    known = [folder for folder in folders if folder is not None and (folder / "config.json").is_file()]
    named = next((name for folder in known if (name := activation_of(folder))), "Sigmoid")
    activation = named.rpartition(".")[2].lower()
    if activation not in ("sigmoid", "identity"):
        raise Unsupported(f"its scores are of the activation function {named}; accepted are Sigmoid and Identity")
    return {"activation": activation}


def settings_of(task: str, base: ImportBase, options: ImportOptions, *folders: Path | None) -> dict[str, Any]:
    """Settings of a task, except of embeddings.

    Args:
        task: Name of the task of encoders.
        base: Base that the task is made for.
        options: Options of the import.
        folders: Folders that may have a configuration of the source model.

    Raises:
        InvalidArgument: An option is for another task.
        Unsupported: See `rerank_settings`.
    """
    _refuse_other_options(task, options)
    if task == "question-answering":
        longest = options.max_answer_tokens
        return {
            **({"impossible_answers": True} if options.impossible_answers else {}),
            **({} if longest is None else {"max_answer_tokens": longest}),
        }
    if task == "rerank":
        return rerank_settings(*folders)
    if task != "token-classification" or base.tokenizer is None:
        return {}
    model = json.loads(base.tokenizer.read_bytes())["model"]  # a file of the published version
    unknown = model.get("unk_id")
    if unknown is None and model.get("unk_token") is not None:
        unknown = open_tokenizer(base.tokenizer).token_to_id(model["unk_token"])
    return {"word_pieces": bool(model.get("continuing_subword_prefix")), "unknown_id": unknown}


def _refuse_other_options(task: str, options: ImportOptions) -> None:
    """Refuse options of an import that are for another task."""
    for option, accepting, given in (
        ("--pooling", "embedding", options.pooling is not None),
        ("--impossible-answers", "question-answering", options.impossible_answers),
        ("--max-answer-tokens", "question-answering", options.max_answer_tokens is not None),
    ):
        if given and task != accepting:
            raise InvalidArgument(f"{option} is for tasks of {accepting}, and this one is of {task}; omit it")
