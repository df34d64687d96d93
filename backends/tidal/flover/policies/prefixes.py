"""Prefixes: which tokens of a prompt a slot holds already, and which free slot a prompt gets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from tidal.flover.policies.types import Schedulable

IntArray = npt.NDArray[np.int64]
Prompt = TypeVar("Prompt", bound=Schedulable, contravariant=True)

#: Fewest tokens that are reused: fewer take about as long to copy as to compute.
LEAST_REUSED = 16


class Prefixes(Protocol[Prompt]):
    """What the scheduler knows of the tokens that prompts share with slots and with each other."""

    def reusable(self, item: Prompt) -> int:
        """Number of an item's prompt tokens that its slot holds or that can be copied to it; never the whole prompt."""

    def shared(self, item: Prompt, other: Prompt) -> int:
        """Number of tokens that two prompts begin with and could share; 0 if they use different tasks."""


class NoPrefixes:
    """No tokens are reused."""

    def reusable(self, item: object) -> int:
        """See `Prefixes`."""
        return 0

    def shared(self, item: object, other: object) -> int:
        """See `Prefixes`."""
        return 0


class FreeSlot(NamedTuple):
    """A free slot, as a prompt that needs one sees it.

    Attributes:
        slot: Number of the slot.
        tokens: Number of tokens that it holds for later prompts.
        common: Number of these that the prompt begins with.
        last_used: Time of its last use, on any clock; 0 if it was never used.
        distance: Number of slots between it and the running ones.
    """

    slot: int
    tokens: int
    common: int
    last_used: int
    distance: int


def choose_slot(free: Iterable[FreeSlot]) -> int:
    """Return the free slot that a prompt gets.

    A slot whose tokens all belong to the prompt is the first choice, the one with most of them; then an empty slot,
    then the least recently used one. Ties go to the slot nearest to the running ones.

    Args:
        free: Free slots, at least one.
    """

    def key(each: FreeSlot) -> tuple[bool, int, int, int, int]:
        loses = each.tokens > each.common
        return loses, 0 if loses else -each.tokens, each.last_used, each.distance, each.slot

    return min(free, key=key).slot


def common_prefix(first: IntArray, second: IntArray) -> int:
    """Return the number of tokens that two sequences begin with alike.

    Args:
        first: Token ids, [tokens].
        second: Token ids, [tokens].
    """
    count = min(len(first), len(second))
    different = first[:count] != second[:count]
    return int(different.argmax()) if different.any() else count


def start_of(ids: IntArray) -> bytes:
    """Return the first `LEAST_REUSED` tokens: sequences that differ there share too few for a copy.

    Args:
        ids: Token ids, [tokens] int64.
    """
    return ids[:LEAST_REUSED].tobytes()
