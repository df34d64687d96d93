"""What defines a kind of fine-tuning, and the registry of kinds."""

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
        name: Name by which task records and operators refer to the kind.
        title: Description for people.
        term_types: Types of terms that `write` accepts at a linear layer; biases need not be listed.
        read: Converts a linear layer's stored tensors to terms. It takes every tensor of the kind, but not the bias.
        write: Converts the terms of a linear layer to the tensors that `read` takes; its arguments are the terms, the
            base's layer, and how values are stored.
    """

    name: str
    title: str
    term_types: tuple[type, ...]
    read: Callable[[LayerTensors], LinearTerms]
    write: Callable[[LinearTerms, LinearLayer, Storage], Mapping[str, Array]]


def find_kind(name: str) -> Kind:
    """The kind with a name.

    Args:
        name: Name of the kind.

    Raises:
        InvalidArgument: There is no such kind; the message lists the known ones.
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
    """Names of the kinds whose terms cannot be merged into weights: those with bottlenecks."""
    return frozenset(name for name, kind in kinds().items() if Bottleneck in kind.term_types)
