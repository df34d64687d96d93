"""Selection of a candidate for a target, among those that the build measured (Tabi §5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tidal.errors import InvalidArgument
from tidal.tabi.manifest import Candidate, Expected, Target

Part = Literal["selection", "reported"]


def select(candidates: Sequence[Candidate], target: Target, part: Part = "selection") -> int:
    """Return the index of the candidate that meets a target best.

    - Accuracy: the lowest mean latency among the candidates that reach the score.
    - Accuracy loss: the same, for the score of the most accurate single level minus the loss.
    - Latency: the highest score among the candidates whose mean latency is at most the target.
    - Escalation rate: the highest score among the candidates of whose queries at most that share leaves the first
      level. A single model counts if some cascade begins with it, as a cascade that re-routes nothing.

    Ties are broken by the other figure.

    Args:
        candidates: Measured candidates, at least one.
        target: Target to meet.
        part: Part of the data whose figures are compared.

    Raises:
        InvalidArgument: No candidate meets the target; the message names the closest one.
    """
    figures: list[Expected] = [getattr(candidate, part) for candidate in candidates]
    indices = range(len(candidates))

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
        meeting = [index for index in indices if figures[index].score >= least]
        if not meeting:
            best = closest(min(indices, key=by_score))
            raise InvalidArgument(f"no candidate reaches the accuracy {least:g}; the best is {best}")
        return min(meeting, key=by_latency)
    if target.latency_ms is not None:
        meeting = [index for index in indices if figures[index].latency.mean <= target.latency_ms]
        if not meeting:
            best = closest(min(indices, key=by_latency))
            raise InvalidArgument(f"no candidate has a mean latency of {target.latency_ms:g} ms; the fastest is {best}")
        return min(meeting, key=by_score)
    assert target.escalation_rate is not None  # a target names exactly one
    first = {candidate.levels[0] for candidate in candidates if len(candidate.levels) > 1}
    cascades = [index for index in indices if len(candidates[index].levels) > 1 or candidates[index].levels[0] in first]
    if not cascades:
        raise InvalidArgument("escalation_rate is for cascades of several levels; all candidates are single models")
    meeting = [index for index in cascades if escalation_rate(figures[index]) <= target.escalation_rate]
    if not meeting:
        best = closest(min(cascades, key=lambda index: (escalation_rate(figures[index]), *by_score(index))))
        raise InvalidArgument(
            f"no candidate re-routes at most {target.escalation_rate:.1%} of its queries; the closest is {best}"
        )
    return min(meeting, key=by_score)


def least_score(candidates: Sequence[Candidate], target: Target, part: Part = "selection") -> float | None:
    """Return the score that a target requires; None if it is a target of another kind.

    Args:
        candidates: Measured candidates; an accuracy loss refers to the last single level among them, the most accurate.
        target: Target to meet.
        part: Part of the data whose figures are compared.

    Raises:
        InvalidArgument: The target is an accuracy loss, and no candidate is a single level.
    """
    if target.accuracy_loss is None:
        return target.accuracy
    singles = [candidate for candidate in candidates if len(candidate.levels) == 1]
    if not singles:
        raise InvalidArgument(
            f"accuracy_loss is {target.accuracy_loss:g}, but no candidate is a single level that it could refer to; "
            "set an accuracy"
        )
    of: Expected = getattr(max(singles, key=lambda candidate: candidate.levels), part)
    return of.score - target.accuracy_loss


def escalation_rate(expected: Expected) -> float:
    """Return the share of the queries that leave a candidate's first level.

    Args:
        expected: Figures of the candidate.
    """
    return sum(expected.returned[1:])


def faster(candidates: Sequence[Candidate], chosen: int, least_score: float) -> int | None:
    """Return the candidate that replaces the chosen one under overload: faster, and on levels that are loaded.

    Args:
        candidates: All candidates.
        chosen: Index of the one that serves now.
        least_score: Minimum score on the selection part.

    Returns:
        Index of the one with the highest score, among equals the fastest; None if there is none.
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
