"""What a kind of fine-tuning consists of, and finding one by its name."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tidal.pets.kinds
from tidal.errors import InvalidArgument, did_you_mean
from tidal.pets.kinds.tensors import LayerTensors
from tidal.pets.terms import Bottleneck, LinearLayer, LinearTerms
from tidal.tasks.stored import Storage
from tidal.tensor_file import Array


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fine-tuning.

    Attributes:
        name: as tasks and operators name it.
        title: what it is, for people.
        holds: the types of terms that a linear layer of it may have, biases aside: what `write` is given.
        read: a linear layer's stored tensors to its terms. It takes every tensor that it knows; biases are not its.
        write: a linear layer's terms to the tensors that `read` takes. Its arguments: terms, the base's layer, how
            values are stored.
    """

    name: str
    title: str
    term_types: tuple[type, ...]
    read: Callable[[LayerTensors], LinearTerms]
    write: Callable[[LinearTerms, LinearLayer, Storage], Mapping[str, Array]]


def find_kind(name: str) -> Kind:
    """The kind of a name.

    Raises:
        InvalidArgument: there is none; names those there are.
    """
    known = kinds()
    if name not in known:
        raise InvalidArgument(f"unknown kind '{name[:80]}': {did_you_mean(name[:80], known)}")
    return known[name]


@functools.cache
def kinds() -> dict[str, Kind]:
    """All kinds by name: the `KIND` of every module of `tidal.pets.kinds` that has one."""
    found: dict[str, Kind] = {}
    for module in pkgutil.iter_modules(tidal.pets.kinds.__path__, f"{tidal.pets.kinds.__name__}."):
        kind = getattr(importlib.import_module(module.name), "KIND", None)
        if isinstance(kind, Kind):
            found[kind.name] = kind
    return dict(sorted(found.items()))


def unmergeable_kinds() -> frozenset[str]:
    """Kinds whose terms stay beside the weights of a merged copy of the base: those with bottlenecks."""
    return frozenset(name for name, kind in kinds().items() if Bottleneck in kind.term_types)
