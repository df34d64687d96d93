"""Which stream of a GPU runs which task's operator (PetS Algorithm 2), and the number of streams (§6.3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidal.errors import InvalidArgument, did_you_mean
from tidal.pets.profile import PetsProfile, StreamRule


@dataclass(frozen=True, slots=True)
class TaskOperator:
    """The terms of one task in a batch.

    Attributes:
        kind: Name under which the profile lists the operator's cost.
        queries: Number of the task's queries in the batch.
        length: Length of the longest of them in tokens.
    """

    kind: str
    queries: int
    length: int


def operational_intensity(operator: TaskOperator, profile: PetsProfile) -> float:
    """Operations per byte moved: (FLOPs / β) / ω (line 5 of Algorithm 2).

    Args:
        operator: The operator.
        profile: Profile of the base on this GPU.

    Raises:
        InvalidArgument: The profile has no operators of the kind, or the operator is beyond what was measured.
    """
    measured = profile.operators.get(operator.kind)
    if measured is None:
        raise InvalidArgument(
            f"the profile has no operators of the kind '{operator.kind}'; "
            f"{did_you_mean(operator.kind, profile.operators)}"
        )
    flops = measured.flops_per_token * operator.queries * operator.length
    seconds = profile.terms_ms[operator.kind].at(operator.length, operator.queries) / 1e3
    moved = seconds * measured.gigabytes_per_s.at(operator.length, operator.queries) * 1e9
    return flops / moved if moved > 0 else float("inf")


def assign_streams(operators: Sequence[TaskOperator], profile: PetsProfile, streams: int) -> list[int]:
    """Assign a stream to every operator of a batch, so that operators on different streams need different resources.

    Operators are sorted by operational intensity and cut into as many runs as there are streams. Algorithm 2 prints
    ⌊idx/|S|⌋, which numbers a stream beyond the last as soon as there are more than |S|² operators, and leaves streams
    idle if there are fewer; this is ⌊idx·|S|/|O|⌋, which is what is meant.

    Args:
        operators: Operators of the batch.
        profile: Profile of the base on this GPU.
        streams: Number of streams.

    Returns:
        The stream of each operator, from 0.

    Raises:
        InvalidArgument: As `operational_intensity`.
    """
    intensities = [operational_intensity(operator, profile) for operator in operators]
    chosen = [0] * len(operators)
    for index, position in enumerate(sorted(range(len(operators)), key=intensities.__getitem__)):
        chosen[position] = index * streams // len(operators)
    return chosen


def stream_count(operators: Sequence[TaskOperator], rule: StreamRule) -> int:
    """Number of streams for a batch's operators: few if they are short, and never more than there are operators."""
    if not operators:
        return 1
    tokens = sum(operator.queries * operator.length for operator in operators) / len(operators)
    return min(len(operators), rule.few if tokens < rule.threshold_tokens else rule.many)
