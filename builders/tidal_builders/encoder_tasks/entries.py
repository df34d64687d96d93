"""The registry of buildable tasks: one entry per task of `tidal.encoder_tasks`, whose code is imported when used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tidal_builders.foreign.recognise import Task

if TYPE_CHECKING:
    from tidal_builders.encoder_tasks.measures import Measure
    from tidal_builders.encoder_tasks.prepared import Prepared, PrepareOptions


@dataclass(frozen=True, slots=True)
class BuildTask:
    """How models for one task are built.

    Attributes:
        native: Type by which a source model is recognised.
        auto_class: Class of transformers that loads the source model.
        prepare: Function of the folder, the model and `PrepareOptions` that returns `Prepared`, as `module:name`.
        measure: `Measure` of the engines' agreement with the source model, or a function of the labels' names that
            returns it, as `module:name`.
        others: Other accepted types when the task is requested.
        pairs: Whether queries are pairs of texts.
    """

    native: Task
    auto_class: str
    prepare: str
    measure: str
    others: tuple[Task, ...] = ()
    pairs: bool = False

    @property
    def sources(self) -> frozenset[Task]:
        """What a source model may be recognised as."""
        return frozenset((self.native, *self.others, "unknown"))

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules that decide what is built."""
        return self.prepare.partition(":")[0], self.measure.partition(":")[0]

    def load(self, folder: Path, model: Any, options: PrepareOptions) -> Prepared:
        """Prepare a loaded model for the task.

        Args:
            folder: Folder of the source model.
            model: Model of `transformers`.
            options: Fields of the spec.

        Raises:
            InvalidArgument: The folder's files and the spec do not fit the task.
        """
        return cast("Prepared", _load(self.prepare)(folder, model, options))

    def load_measure(self, labels: Sequence[str] = ()) -> Measure:
        """The measure of the task.

        Args:
            labels: Names of the model's labels, which measures of some tasks need.
        """
        found = _load(self.measure)
        return cast("Measure", found(labels) if callable(found) else found)


def _load(part: str) -> Any:
    module, _, name = part.partition(":")
    return getattr(import_module(module), name)


_MEASURES = "tidal_builders.encoder_tasks.measures"
_SEQUENCE = "AutoModelForSequenceClassification"
_LOGITS = "tidal_builders.encoder_tasks.logits"

BUILD_TASKS: dict[str, BuildTask] = {
    "classification": BuildTask(
        native="classification",
        auto_class=_SEQUENCE,
        prepare=f"{_LOGITS}:prepare_labels",
        measure=f"{_MEASURES}:LABELS",
    ),
    "multi-label": BuildTask(
        native="multi_label",
        others=("classification",),
        auto_class=_SEQUENCE,
        prepare=f"{_LOGITS}:prepare_labels",
        measure=f"{_MEASURES}:INDEPENDENT_LABELS",
    ),
    "regression": BuildTask(
        native="regression",
        auto_class=_SEQUENCE,
        prepare=f"{_LOGITS}:prepare_labels",
        measure=f"{_MEASURES}:SCORES",
    ),
    "rerank": BuildTask(
        native="regression",
        auto_class=_SEQUENCE,
        prepare="tidal_builders.encoder_tasks.rerank:prepare_reranker",
        measure=f"{_MEASURES}:SCORES",
        pairs=True,
    ),
    "embedding": BuildTask(
        native="embedding",
        others=("encoder", "fill_mask"),
        auto_class="AutoModel",
        prepare="tidal_builders.encoder_tasks.embedding:prepare_embedding",
        measure=f"{_MEASURES}:VECTORS",
    ),
    "sparse-embedding": BuildTask(
        native="embedding",
        others=("fill_mask",),
        auto_class="AutoModelForMaskedLM",
        prepare="tidal_builders.encoder_tasks.sparse:prepare_sparse",
        measure=f"{_MEASURES}:SPARSE",
    ),
    "token-classification": BuildTask(
        native="token_classification",
        auto_class="AutoModelForTokenClassification",
        prepare="tidal_builders.encoder_tasks.tokens:prepare_token_labels",
        measure=f"{_MEASURES}:entities",
    ),
    "question-answering": BuildTask(
        native="question_answering",
        auto_class="AutoModelForQuestionAnswering",
        prepare="tidal_builders.encoder_tasks.tokens:prepare_questions",
        measure=f"{_MEASURES}:ANSWERS",
        pairs=True,
    ),
    "fill-mask": BuildTask(
        native="fill_mask",
        auto_class="AutoModelForMaskedLM",
        prepare="tidal_builders.encoder_tasks.masks:prepare_masks",
        measure=f"{_MEASURES}:MASKED_WORDS",
    ),
}
