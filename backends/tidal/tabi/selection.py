"""Online selection among the candidates that were measured (Tabi §5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tidal.errors import InvalidArgument
from tidal.tabi.manifest import Candidate, Expected, Target

Part = Literal["selection", "reported"]


def select(candidates: Sequence[Candidate], target: Target, part: Part = "selection") -> int:
    """The candidate that meets a target best.

    An accuracy target: the lowest mean latency among those whose score is at least that; an accuracy loss means the
    score of the most accurate level alone less the loss. A latency target: the
    highest score among those whose mean latency is at most that. An escalation rate: the highest score among those of
    whose queries at most that share leaves their first level; a single model counts there if some cascade begins
    with it, as a cascade that re-routes nothing. The other figure decides between equals.

    Args:
        candidates: at least one.
        target: what to meet.
        part: of the data that the figures are from.

    Returns:
        Index into `candidates`.

    Raises:
        InvalidArgument: none meets it; says how close the best came.
    """
    figures: list[Expected] = [getattr(candidate, part) for candidate in candidates]
    everyone = range(len(candidates))

    def by_latency(index: int) -> tuple[float, float]:
        return figures[index].latency.mean, -figures[index].score

    def by_score(index: int) -> tuple[float, float]:
        return -figures[index].score, figures[index].latency.mean

    def closest(index: int) -> str:
        of = figures[index]
        return (
            f"'{candidates[index].name}' with a score of {of.score:.4f} at {of.latency.mean:.3g} ms, "
            f"{escalation_rate(of):.1%} of its queries leaving the first level"
        )

    least = least_score(candidates, target, part)
    if least is not None:
        meeting = [index for index in everyone if figures[index].score >= least]
        if not meeting:
            best = closest(min(everyone, key=by_score))
            raise InvalidArgument(f"no candidate reaches the accuracy {least:g}; the best is {best}")
        return min(meeting, key=by_latency)
    if target.latency_ms is not None:
        meeting = [index for index in everyone if figures[index].latency.mean <= target.latency_ms]
        if not meeting:
            best = closest(min(everyone, key=by_latency))
            raise InvalidArgument(f"no candidate has a mean latency of {target.latency_ms:g} ms; the fastest is {best}")
        return min(meeting, key=by_score)
    assert target.escalation_rate is not None  # a target names exactly one
    first = {candidate.levels[0] for candidate in candidates if len(candidate.levels) > 1}
    cascades = [
        index for index in everyone if len(candidates[index].levels) > 1 or candidates[index].levels[0] in first
    ]
    if not cascades:
        raise InvalidArgument("escalation_rate is for cascades of several levels; all candidates are single models")
    meeting = [index for index in cascades if escalation_rate(figures[index]) <= target.escalation_rate]
    if not meeting:
        best = closest(min(cascades, key=lambda index: (escalation_rate(figures[index]), *by_score(index))))
        raise InvalidArgument(
            f"no candidate re-routes as little as {target.escalation_rate:.1%} of its queries; the closest is {best}"
        )
    return min(meeting, key=by_score)


def least_score(candidates: Sequence[Candidate], target: Target, part: Part = "selection") -> float | None:
    """The score that a target asks for; None where it asks for something else.

    Args:
        candidates: among which an accuracy loss refers to the last level alone, the most accurate one.
        target: what to meet.
        part: of the data that the figures are from.

    Raises:
        InvalidArgument: an accuracy loss is asked for, and no level alone is among the candidates.
    """
    if target.accuracy_loss is None:
        return target.accuracy
    singles = [candidate for candidate in candidates if len(candidate.levels) == 1]
    if not singles:
        raise InvalidArgument(
            f"accuracy_loss is {target.accuracy_loss:g}, and no candidate is a level alone that it could refer to: "
            "set an accuracy"
        )
    of: Expected = getattr(max(singles, key=lambda candidate: candidate.levels), part)
    return of.score - target.accuracy_loss


def escalation_rate(expected: Expected) -> float:
    """Share of the queries that leave a candidate's first level."""
    return sum(expected.returned[1:])


def faster(candidates: Sequence[Candidate], chosen: int, least_score: float) -> int | None:
    """The candidate to take under overload: faster than the chosen one, on levels that are loaded for it.

    Args:
        candidates: all of them.
        chosen: index of the one that serves now.
        least_score: on the selection part, that must still be kept.

    Returns:
        Index of the one with the highest score, between equals the fastest; None: there is none.
    """
    present = candidates[chosen]
    choices = [
        index
        for index, candidate in enumerate(candidates)
        if set(candidate.levels) <= set(present.levels)
        and candidate.selection.latency.mean < present.selection.latency.mean
        and candidate.selection.score >= least_score
    ]
    return min(
        choices,
        key=lambda index: (-candidates[index].selection.score, candidates[index].selection.latency.mean),
        default=None,
    )
