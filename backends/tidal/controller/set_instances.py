"""Instances of models that an operator has set: the controller then decides only where they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidal.controller.observed import ObservedModel
from tidal.controller.reports import ModelProfile
from tidal.errors import NotFound, did_you_mean


class SetInstances:
    """What operators have set in this process, over what the last plans say of others before it."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, ...] | None] = {}

    def put(self, model: str, counts: tuple[int, ...] | None) -> None:
        """Set the instances of a model by runtime; None: the controller decides about them from now on."""
        self._counts[model] = counts

    def of(self, model: str, profile: ModelProfile, last: Mapping[str, Any]) -> tuple[int, ...] | None:
        """Return the instances of a model by runtime; None where the controller decides about them.

        Args:
            model: Name of the model.
            profile: Published properties of the model. Instances of other runtimes than these are no longer set.
            last: Last plan of the model; empty if there is none.
        """
        counts = self._counts.get(model)
        if model not in self._counts and (before := last.get("set")) is not None:
            counts = tuple(before.values()) if [*before] == [*map(str, profile.lengths)] else None
        return counts if counts is None or len(counts) == len(profile.lengths) else None


def requested(
    model: str, observed: Mapping[str, ObservedModel], instances: Mapping[int, int] | None
) -> tuple[ObservedModel, tuple[int, ...] | None]:
    """Return a model whose instances are to be set, with them by runtime.

    Args:
        model: Name of the model.
        observed: Models of the nodes by name.
        instances: Instances by max_length in tokens, 0 where a runtime is left out; None: the controller decides.

    Raises:
        NotFound: No node serves the model.
        InvalidArgument: It has no such runtime.
    """
    known = observed.get(model)
    if known is None:
        raise NotFound(f"no node serves the partitioned model '{model}': {did_you_mean(model, observed)}")
    return known, None if instances is None else known.profile.counts_of(instances)
