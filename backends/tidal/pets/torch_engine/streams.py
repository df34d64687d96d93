"""Which operators of a batch run concurrently on a GPU, by the profile: Algorithm 2 and the rule of §6.3.3."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from tidal.pets.policies.streams import TaskOperator, assign_streams, stream_count
from tidal.pets.profile import PetsProfile

# The part of every operator, by number from 0; operators of one part run one after another.
Assign = Callable[[Sequence[TaskOperator]], Sequence[int]]


def together(operators: Sequence[TaskOperator]) -> Sequence[int]:
    """Assign all operators to one part, in which those of a type are one operation."""
    return [0] * len(operators)


def by_intensity(profile: PetsProfile, streams: int | None = None) -> Assign:
    """Make a function that spreads operators over streams by their operational intensity.

    Args:
        profile: Profile of the encoder on this GPU.
        streams: Number of streams; None: the number by the profile's rule.

    Returns:
        The function; `together` if the profile has no operators.
    """
    rule, kinds = profile.streams, tuple(profile.operators)
    if not kinds or (rule is None and streams is None):
        return together

    def assign(operators: Sequence[TaskOperator]) -> Sequence[int]:
        known = [
            operator if operator.kind in kinds else dataclasses.replace(operator, kind=kinds[0])
            for operator in operators
        ]
        if streams is not None:
            return assign_streams(known, profile, min(streams, max(1, len(known))))
        assert rule is not None
        return assign_streams(known, profile, stream_count(known, rule))

    return assign
