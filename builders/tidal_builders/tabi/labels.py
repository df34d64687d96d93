"""What the classes of a cascade's levels have to do with each other."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tidal.errors import InvalidArgument
from tidal_builders.foreign.recognise import SINGLE_OUTPUT, require

# How Hugging Face names classes that nobody has named.
_NUMBERED = re.compile(r"LABEL_\d+")
_TOLD = 4


@dataclass(frozen=True, slots=True)
class Classes:
    """A level's classes: their names, in the order of its logits."""

    level: str
    names: tuple[str, ...]

    @property
    def named(self) -> bool:
        """Whether the names say anything."""
        return not all(_NUMBERED.fullmatch(name) for name in self.names)


@dataclass(frozen=True, slots=True)
class Agreement:
    """The cascade's labels, and where each level has them.

    Attributes:
        task: a regression has one output, and no labels.
        labels: in the cascade's order.
        orders: for each level the place of each label in its logits; None where that is the cascade's order.
    """

    task: Literal["classification", "regression"]
    labels: tuple[str, ...]
    orders: tuple[tuple[int, ...] | None, ...]

    def names_of(self, level: int) -> tuple[str, ...] | None:
        """The labels in the order of a level's logits; None for a regression."""
        order = self.orders[level]
        if order is None:
            return self.labels or None
        return tuple(self.labels[order.index(place)] for place in range(len(order)))


def read_classes(level: str, folder: Path, labels: Sequence[str] | None) -> Classes:
    """A source model's classes, by its config.json.

    Args:
        level: its name, for errors.
        folder: with the model's files.
        labels: the spec's names of its classes, in its order.

    Raises:
        InvalidArgument: there is no config.json of a single-label classifier or regression, or the number of names
            is another one.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
        names = config.get("id2label") or {}
        own = tuple(str(names[number]) for number in sorted(names, key=int))
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise InvalidArgument(f"level '{level}': {path} cannot be read: {error}") from None
    if not own:  # what transformers takes it for
        own = tuple(f"LABEL_{number}" for number in range(int(config.get("num_labels", 2))))
    try:
        require(folder, SINGLE_OUTPUT, "tabi")
    except InvalidArgument as error:
        raise InvalidArgument(f"level '{level}': {error}") from None
    return classes_of(level, own, labels)


def classes_of(level: str, own: Sequence[str], labels: Sequence[str] | None) -> Classes:
    """A level's classes.

    Args:
        level: its name, for errors.
        own: names of the classes as the model or the task has them.
        labels: the spec's names of them, in the same order.

    Raises:
        InvalidArgument: the number of names is another one.
    """
    if labels is not None and len(labels) != len(own):
        raise InvalidArgument(
            f"level '{level}': field 'labels' has {len(labels)} names, the model has {len(own)} classes"
        )
    return Classes(level, tuple(labels or own))


def agree(levels: Sequence[Classes], labels: Sequence[str] | None) -> Agreement:
    """Put the levels' classes together by their names.

    Args:
        levels: in the order of the spec.
        labels: the spec's label names; they are taken for those of models that only number theirs.

    Raises:
        InvalidArgument: the levels do not have the same classes; says which differ and what to do.
    """
    sizes = {len(level.names) for level in levels}
    if len(sizes) > 1:
        counts = ", ".join(f"{level.level} {len(level.names)}" for level in levels)
        raise InvalidArgument(f"field 'levels': all must have the same classes, got numbers of classes {counts}")
    (size,) = sizes
    if size == 1:
        if labels is not None:
            raise InvalidArgument("field 'labels': the levels are regressions, which have none")
        return Agreement("regression", (), (None,) * len(levels))
    if labels is not None and len(labels) != size:
        raise InvalidArgument(f"field 'labels': the levels have {size} classes, got {len(labels)} names")
    known = next((level for level in levels if level.named), levels[0])
    together = tuple(labels) if labels is not None else known.names
    if len(set(together)) != size:
        raise InvalidArgument(f"level '{known.level}': its labels must differ, got {', '.join(together)[:200]}")
    orders = tuple(_order(level, together, given=labels is not None or not known.named) for level in levels)
    return Agreement("classification", together, orders)


def _order(level: Classes, labels: tuple[str, ...], *, given: bool) -> tuple[int, ...] | None:
    """The place of each label in a level's logits; `given` labels are also those of a level without names."""
    for spelt in (str, str.casefold):
        places = {spelt(name): place for place, name in enumerate(level.names)}
        if len(places) == len(labels) and places.keys() == {spelt(label) for label in labels}:
            order = tuple(places[spelt(label)] for label in labels)
            return None if order == tuple(range(len(order))) else order
    if not level.named:
        if given:
            return None
        raise InvalidArgument(
            f"level '{level.level}': the model only numbers its labels ({level.names[0]} …) and another level names "
            f"them: give its names, in its order, as this level's 'labels'"
        )
    raise InvalidArgument(
        f"level '{level.level}': its labels are not those of the cascade: {_few(set(level.names) - set(labels))} in "
        f"place of {_few(set(labels) - set(level.names))}; give the cascade's names, in the model's order, as this "
        "level's 'labels'"
    )


def _few(names: set[str]) -> str:
    shown = sorted(names)
    return ", ".join(f"'{name[:40]}'" for name in shown[:_TOLD]) + (" …" if len(shown) > _TOLD else "")
