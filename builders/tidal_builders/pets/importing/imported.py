"""Options and results of an import."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidal.errors import InvalidArgument
from tidal.pets.base import BaseInfo
from tidal.pets.tasks.manifest import Provenance
from tidal.pets.terms import BaseLayers, TaskTerms

if TYPE_CHECKING:
    from tidal_builders.pets.importing.sources import SourceModel


# Default bounds: agreement with the source on generated texts, and 1 - the accuracy that may be lost.
MIN_AGREEMENT = 0.95
MIN_KEPT = 0.98


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Options of an import.

    Attributes:
        labels: Names of the classes; None: those of the source.
        sparsity: Share of a checkpoint's linear weights that stay the base's; None: the largest of a ladder at which
            the task still answers as the checkpoint does, see `choose_sparsity`.
        data: File of labelled queries on which the accuracy is compared; None: agreement on generated texts.
        base_model: Folder of the base in Hugging Face's format: the model that an adapter was trained on, with the
            weights that a checkpoint changed and a task cannot.
        force: Whether to add a task that cannot be compared with its base or its source.
        min_agreement: Bound that replaces the default of `min_score`; None: the default.
        task: Task of encoders that the head answers, where the source leaves a choice; None: the source's.
        pooling: Pooling of hidden states into an embedding; None: as the source's files say.
        impossible_answers: Whether a question may have no answer in its context.
        max_answer_tokens: Maximum number of tokens of an answer to a question; None: the task's default.
    """

    labels: tuple[str, ...] | None = None
    sparsity: float | None = None
    data: Path | None = None
    base_model: Path | None = None
    force: bool = False
    min_agreement: float | None = None
    task: str | None = None
    pooling: str | None = None
    impossible_answers: bool = False
    max_answer_tokens: int | None = None

    @property
    def min_score(self) -> float:
        """Least agreement with the source, see `agreement`; with `data`, 1 minus the accuracy that may be lost."""
        if self.min_agreement is not None:
            return self.min_agreement
        return MIN_AGREEMENT if self.data is None else MIN_KEPT


@dataclass(frozen=True, slots=True)
class ImportBase:
    """The base that a task is made for.

    Attributes:
        layers: Layers that tasks may change.
        info: Content of `pets.json`.
        name: Hugging Face id or folder that the model was built from; "" if unknown.
        folder: Folder of that model, if it is on this machine and unchanged; else None.
        tokenizer: File of the tokenizer that texts are served with; None if unknown.
    """

    layers: BaseLayers
    info: BaseInfo
    name: str = ""
    folder: Path | None = None
    tokenizer: Path | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """A task that was made from a source.

    Attributes:
        kind: Kind of fine-tuning.
        terms: Terms of the task.
        provenance: Origin of the terms.
        source: Loads the model that the task was made from, as its author runs it; None if it is not available.
        lossless: Whether the task stores everything that the source changed, so that it must answer identically.
        carried: Loads the source with only the changes that stored terms have; None if the task is lossless, or if the
            weights that a task cannot change are not available.
        at_sparsity: Makes the same task at another sparsity; None if the sparsity is given or does not apply.
    """

    kind: str
    terms: TaskTerms
    provenance: Provenance
    source: Callable[[], SourceModel] | None = None
    lossless: bool = True
    carried: Callable[[TaskTerms], SourceModel] | None = None
    at_sparsity: Callable[[float], Imported] | None = None


def labels_of(wanted: Sequence[str] | None, named: Sequence[str] | None, classes: int) -> tuple[str, ...]:
    """Names of a head's classes: the requested ones, else the source's.

    Args:
        wanted: Requested names, or None.
        named: Names in the source, or None.
        classes: Number of classes of the head.

    Raises:
        InvalidArgument: There are no names, or their number differs from the number of classes.
    """
    labels = wanted if wanted is not None else named
    if labels is None:
        raise InvalidArgument(
            f"the source does not name the {classes} classes of its head: name them, in the order of the head's "
            "outputs, by --labels A,B,..."
        )
    if len(labels) != classes:
        raise InvalidArgument(
            f"the head has {classes} classes, received {len(labels)} labels: {', '.join(labels)[:200]}"
        )
    return tuple(labels)
