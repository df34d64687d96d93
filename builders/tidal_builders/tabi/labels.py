"""Agreement of the levels' classes: the cascade's labels, and their order in each level's logits."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidal.errors import InvalidArgument
from tidal.tabi.manifest import CascadeTask
from tidal_builders.foreign.recognise import SINGLE_OUTPUT, require

# Default names of classes in Hugging Face models.
_NUMBERED = re.compile(r"LABEL_\d+")
_MAX_SHOWN = 4
# Labels of the data of a cascade of rerankers, which may also be 0 and 1.
RELEVANCE = ("irrelevant", "relevant")


@dataclass(frozen=True, slots=True)
class LevelClasses:
    """The names of a level's classes, in the order of its logits."""

    level: str
    names: tuple[str, ...]

    @property
    def named(self) -> bool:
        """Whether the names are more than numbers."""
        return not all(_NUMBERED.fullmatch(name) for name in self.names)


@dataclass(frozen=True, slots=True)
class LabelAgreement:
    """The cascade's labels, and their order in each level's logits.

    Attributes:
        task: Task of the cascade; a regression has one output and no labels, a reranker one output for `RELEVANCE`.
        labels: Labels in the cascade's order.
        orders: Index of each label in a level's logits, by level; None if that is the cascade's order.
    """

    task: CascadeTask
    labels: tuple[str, ...]
    orders: tuple[tuple[int, ...] | None, ...]

    def names_of(self, level: int) -> tuple[str, ...] | None:
        """Return the labels in the order of a level's logits; None for a regression and a reranker.

        Args:
            level: Index of the level in the spec.
        """
        order = self.orders[level]
        if self.task == "rerank":
            return None
        if order is None:
            return self.labels or None
        return tuple(self.labels[order.index(place)] for place in range(len(order)))


def read_classes(level: str, folder: Path, labels: Sequence[str] | None) -> LevelClasses:
    """Read a source model's classes from its config.json.

    Args:
        level: Name of the level, for errors.
        folder: Folder with the model's files.
        labels: Names of its classes in the spec, in the model's order; None if the spec has none.

    Raises:
        InvalidArgument: There is no config.json of a single-label classifier or regression, or the number of names
            differs.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
        names = config.get("id2label") or {}
        own = tuple(str(names[number]) for number in sorted(names, key=int))
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise InvalidArgument(f"level '{level}': {path} cannot be read: {error}") from None
    if not own:  # the default of transformers
        own = tuple(f"LABEL_{number}" for number in range(int(config.get("num_labels", 2))))
    try:
        require(folder, SINGLE_OUTPUT, "tabi")
    except InvalidArgument as error:
        raise InvalidArgument(f"level '{level}': {error}") from None
    return classes_of(level, own, labels)


def classes_of(level: str, own: Sequence[str], labels: Sequence[str] | None) -> LevelClasses:
    """Return a level's classes, with the spec's names if it has any.

    Args:
        level: Name of the level, for errors.
        own: Names of the classes in the model or the task.
        labels: Names of them in the spec, in the same order; None if the spec has none.

    Raises:
        InvalidArgument: The number of names differs.
    """
    if labels is not None and len(labels) != len(own):
        raise InvalidArgument(
            f"level '{level}': field 'labels' has {len(labels)} names, but the model has {len(own)} classes"
        )
    return LevelClasses(level, tuple(labels or own))


def agree_rerankers(levels: Sequence[LevelClasses], labels: Sequence[str] | None) -> LabelAgreement:
    """Check that all levels are rerankers.

    Args:
        levels: Classes of the levels, in the order of the spec.
        labels: Label names in the spec.

    Raises:
        InvalidArgument: A level has several outputs, or the spec names labels.
    """
    if labels is not None:
        raise InvalidArgument(
            f"field 'labels': a cascade of rerankers has no labels of its own, got {', '.join(labels)[:200]}; remove it"
        )
    for level in levels:
        if len(level.names) != 1:
            raise InvalidArgument(
                f"level '{level.level}': a reranker has 1 output, got {len(level.names)}; remove 'task' for a cascade "
                "of classifiers"
            )
    return LabelAgreement("rerank", RELEVANCE, (None,) * len(levels))


def agree_labels(levels: Sequence[LevelClasses], labels: Sequence[str] | None) -> LabelAgreement:
    """Match the levels' classes by their names.

    Args:
        levels: Classes of the levels, in the order of the spec.
        labels: Label names in the spec; they also name the classes of models that only number theirs.

    Raises:
        InvalidArgument: The levels do not have the same classes; the message names the differences and the remedy.
    """
    sizes = {len(level.names) for level in levels}
    if len(sizes) > 1:
        counts = ", ".join(f"{level.level} {len(level.names)}" for level in levels)
        raise InvalidArgument(f"field 'levels': all must have the same classes, got numbers of classes {counts}")
    (size,) = sizes
    if size == 1:
        if labels is not None:
            raise InvalidArgument("field 'labels': the levels are regressions, which have no labels; remove it")
        return LabelAgreement("regression", (), (None,) * len(levels))
    if labels is not None and len(labels) != size:
        raise InvalidArgument(f"field 'labels': the levels have {size} classes, got {len(labels)} names")
    known = next((level for level in levels if level.named), levels[0])
    together = tuple(labels) if labels is not None else known.names
    if len(set(together)) != size:
        raise InvalidArgument(f"level '{known.level}': its labels must differ, got {', '.join(together)[:200]}")
    orders = tuple(_order(level, together, given=labels is not None or not known.named) for level in levels)
    return LabelAgreement("classification", together, orders)


def _order(level: LevelClasses, labels: tuple[str, ...], *, given: bool) -> tuple[int, ...] | None:
    """Return the index of each label in a level's logits; `given` labels also apply to a level without names."""
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
        f"level '{level.level}': its labels differ from those of the cascade: {_few(set(level.names) - set(labels))} "
        f"instead of {_few(set(labels) - set(level.names))}; give the cascade's names, in the model's order, as this "
        "level's 'labels'"
    )


def _few(names: set[str]) -> str:
    shown = sorted(names)
    return ", ".join(f"'{name[:40]}'" for name in shown[:_MAX_SHOWN]) + (" …" if len(shown) > _MAX_SHOWN else "")
