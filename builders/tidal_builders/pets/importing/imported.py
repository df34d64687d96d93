"""What an import makes, and what it may be told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidal.errors import InvalidArgument, Unsupported
from tidal.pets.base import BaseInfo
from tidal.pets.tasks.manifest import Provenance
from tidal.pets.terms import BaseLayers, TaskTerms
from tidal_builders.foreign.recognise import sentence_of

if TYPE_CHECKING:
    from tidal_builders.pets.importing.sources import SourceModel


# Default bounds of how far a task may be from its source: agreement on made texts, and 1 - the accuracy that is lost.
MIN_AGREEMENT = 0.95
MIN_KEPT = 0.98


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What an operator may say about an import.

    Attributes:
        labels: names of the classes; None: those of the source.
        sparsity: share of the linear weights of a checkpoint that stay the base's; None: the largest of a ladder at
            which the task still answers as the checkpoint, see `choose_sparsity`.
        data: labelled queries to measure on what of a checkpoint's accuracy is kept.
        base_model: the base as a Hugging Face folder: what an adapter was trained on, and what holds the weights that a
            checkpoint changed and a task cannot.
        force: whether to add what cannot be compared with its base or its source model.
        min_agreement: bound that replaces the default of `min_score`.
    """

    labels: tuple[str, ...] | None = None
    sparsity: float | None = None
    data: Path | None = None
    base_model: Path | None = None
    force: bool = False
    min_agreement: float | None = None

    @property
    def min_score(self) -> float:
        """Least agreement with the source, see `agreement`; with `data`, 1 - the accuracy that may be lost."""
        if self.min_agreement is not None:
            return self.min_agreement
        return MIN_AGREEMENT if self.data is None else MIN_KEPT


@dataclass(frozen=True, slots=True)
class ImportBase:
    """What a task is made for.

    Attributes:
        layers: Layers that tasks may change.
        info: What `pets.json` says of the encoder.
        name: Hugging Face id or folder that the model was built from; "" if unknown.
        folder: That model's files, where they are on this machine and unchanged.
    """

    layers: BaseLayers
    info: BaseInfo
    name: str = ""
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """A task that was made of a source.

    Attributes:
        kind: Of fine-tuning.
        terms: What it changes.
        provenance: Where it came from.
        source: Loads the model that it was made of, as whoever trained it runs it; None where that is not to be had.
        lossless: Whether the task holds all that the source changed, so that it has to answer alike.
        carried: Loads the source with nothing but what stored terms hold of it; None where it is lossless, or where
            the weights that a task cannot change are not to be had.
        at_sparsity: Makes the same task at another sparsity; None where the sparsity is given or means nothing.
    """

    kind: str
    terms: TaskTerms
    provenance: Provenance
    source: Callable[[], SourceModel] | None = None
    lossless: bool = True
    carried: Callable[[TaskTerms], SourceModel] | None = None
    at_sparsity: Callable[[float], Imported] | None = None


def labels_of(wanted: Sequence[str] | None, named: Sequence[str] | None, classes: int) -> tuple[str, ...]:
    """Names of a head's classes: those wanted, else the source's.

    Raises:
        InvalidArgument: there are none, or not as many as classes.
        Unsupported: the head has one output, which is a score and no class.
    """
    if classes == 1:
        raise Unsupported(f"the head has one output: it is {sentence_of('regression')}")
    labels = wanted if wanted is not None else named
    if labels is None:
        raise InvalidArgument(
            f"the source names none of the {classes} classes of its head: name them, in the order of the head's "
            "outputs, by --labels A,B,..."
        )
    if len(labels) != classes:
        raise InvalidArgument(f"the head has {classes} classes, labels are {len(labels)}: {', '.join(labels)[:200]}")
    return tuple(labels)
