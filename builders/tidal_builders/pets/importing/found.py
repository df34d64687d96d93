"""What an import makes, and what it may be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidal.errors import InvalidArgument
from tidal.pets.base import BaseInfo
from tidal.pets.tasks.manifest import Provenance
from tidal.pets.terms import BaseLayers, TaskTerms


@dataclass(frozen=True, slots=True)
class Wishes:
    """What an operator may say about an import.

    Attributes:
        labels: names of the classes; None: those of the source.
        sparsity: share of the linear weights of a checkpoint that stay the base's.
        data: labelled queries to measure on what of a checkpoint's accuracy is kept.
        base_model: the base as a Hugging Face folder; measuring needs it where a checkpoint changed what tasks cannot.
    """

    labels: tuple[str, ...] | None = None
    sparsity: float = 0.995
    data: Path | None = None
    base_model: Path | None = None


@dataclass(frozen=True, slots=True)
class Base:
    """What a task is made for."""

    layers: BaseLayers
    info: BaseInfo


@dataclass(frozen=True, slots=True)
class Imported:
    """A task that was made of a source."""

    kind: str
    terms: TaskTerms
    provenance: Provenance


def labels_of(wanted: Sequence[str] | None, named: Sequence[str] | None, classes: int) -> tuple[str, ...]:
    """Names of a head's classes: those wanted, else the source's, else LABEL_0 and so on as transformers has it.

    Raises:
        InvalidArgument: there are not as many as classes.
    """
    labels = wanted if wanted is not None else named
    if labels is None:
        return tuple(f"LABEL_{number}" for number in range(classes))
    if len(labels) != classes:
        raise InvalidArgument(f"the head has {classes} classes, labels are {len(labels)}: {', '.join(labels)[:200]}")
    return tuple(labels)
