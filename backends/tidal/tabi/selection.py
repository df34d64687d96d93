"""Selection of a candidate for a target, among those that the build measured (Tabi §5)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from tidal.errors import InvalidArgument
from tidal.tabi.manifest import LATENCY_LIMITS, Candidate, Expected, Target


def select(candidates: Sequence[Candidate], target: Target) -> int:
    """Return the index of the candidate that meets a target best; see `meeting` for those that meet it.

    For an accuracy and a loss of it that is the one with the lowest mean latency, else the one with the highest score,
    of those within the target's limits of percentiles. Ties are broken by the other figure.

    Args:
        candidates: Measured candidates, at least one.
        target: Target to meet.

    Raises:
        InvalidArgument: No candidate meets the target; the message names the closest one. Or the target is an accuracy
            loss that the data is too small for; the message says which one it supports.
    """

    def by_latency(index: int) -> tuple[float, float]:
        return candidates[index].selection.latency.mean, -candidates[index].selection.score

    def by_score(index: int) -> tuple[float, float]:
        return -candidates[index].selection.score, candidates[index].selection.latency.mean

    def closest(index: int) -> str:
        of = candidates[index].selection
        return (
            f"'{candidates[index].name}' with a score of {of.score:.4f} at {of.latency.mean:.3g} ms, "
            f"{escalation_rate(candidates[index].selection):.1%} of its queries leaving the first level"
        )

    found, indices = _meeting(candidates, target), range(len(candidates))
    if target.accuracy_loss is not None and len(found) == 1:
        _check_rows(candidates, target.accuracy_loss)
    if target.accuracy is not None and not found:
        best = closest(min(indices, key=by_score))
        raise InvalidArgument(f"no candidate reaches the accuracy {target.accuracy:g}; the best is {best}")
    if target.latency_ms is not None and not found:
        best = closest(min(indices, key=by_latency))
        raise InvalidArgument(f"no candidate has a mean latency of {target.latency_ms:g} ms; the fastest is {best}")
    if target.escalation_rate is not None and not found:
        cascades = _cascades(candidates)
        if not cascades:
            raise InvalidArgument("escalation_rate is for cascades of several levels; all candidates are single models")
        best = closest(
            min(cascades, key=lambda index: (escalation_rate(candidates[index].selection), *by_score(index)))
        )
        raise InvalidArgument(
            f"no candidate re-routes at most {target.escalation_rate:.1%} of its queries; the closest is {best}"
        )
    within = [index for index in found if _excess(candidates[index], target) <= 1]
    if not within:
        nearest = candidates[min(found, key=lambda index: _excess(candidates[index], target))]
        limits = " and ".join(f"{name} {getattr(target, name):g}" for name in LATENCY_LIMITS if getattr(target, name))
        raise InvalidArgument(
            f"no candidate that meets the target is within {limits}; the closest is '{nearest.name}' with p75_ms "
            f"{nearest.selection.latency.p75:.3g} and p99_ms {nearest.selection.latency.p99:.3g}: raise the limit, or "
            "relax the target"
        )
    return min(within, key=by_score if target.accuracy is None and target.accuracy_loss is None else by_latency)


def meeting(candidates: Sequence[Candidate], target: Target) -> list[int]:
    """Return the indices of the candidates that meet a target on the selection part, with its limits of percentiles.

    - Accuracy: those that reach the score.
    - Accuracy loss: the most accurate level alone, and those of which `proven` says so.
    - Latency: those whose mean latency is at most the target.
    - Escalation rate: those of whose queries at most that share leaves the first level. A single model counts if some
      cascade begins with it, as a cascade that re-routes nothing.

    Args:
        candidates: Measured candidates, at least one.
        target: Target to meet.

    Raises:
        InvalidArgument: The target is an accuracy loss, and no candidate is a single level.
    """
    return [index for index in _meeting(candidates, target) if _excess(candidates[index], target) <= 1]


def _meeting(candidates: Sequence[Candidate], target: Target) -> list[int]:
    """Return the indices of the candidates that meet a target, but for its limits of percentiles."""
    indices = range(len(candidates))
    if target.accuracy_loss is not None:
        level = reference(candidates, target.accuracy_loss)
        within = proven(candidates, target.accuracy_loss)
        return [index for index in indices if candidates[index] is level or index in within]
    if target.accuracy is not None:
        return [index for index in indices if candidates[index].selection.score >= target.accuracy]
    if target.latency_ms is not None:
        return [index for index in indices if candidates[index].selection.latency.mean <= target.latency_ms]
    assert target.escalation_rate is not None  # a target names exactly one
    return [
        index
        for index in _cascades(candidates)
        if escalation_rate(candidates[index].selection) <= target.escalation_rate
    ]


def reference(candidates: Sequence[Candidate], loss: float = 0.0) -> Candidate:
    """Return the most accurate level alone, which an accuracy loss refers to: the last single level.

    Args:
        candidates: Measured candidates.
        loss: Loss, for the error.

    Raises:
        InvalidArgument: No candidate is a single level.
    """
    singles = [candidate for candidate in candidates if len(candidate.levels) == 1]
    if not singles:
        raise InvalidArgument(
            f"accuracy_loss is {loss:g}, but no candidate is a single level that it could refer to; set an accuracy"
        )
    return max(singles, key=lambda candidate: candidate.levels)


def proven(candidates: Sequence[Candidate], loss: float) -> list[int]:
    """Return the indices of the candidates that lose at most `loss`, with 95 % confidence in all of them together.

    The best of many candidates on a part of the data is better there than elsewhere, so a bound for each alone promises
    too much. The order of the candidates was fixed on another part; they are compared in it up to the first one whose
    bound is above the loss. So each of them is compared at the full confidence (fixed-sequence testing; Angelopoulos et
    al., Learn then Test, 2021).

    Args:
        candidates: Measured candidates.
        loss: Maximum loss of score.
    """
    return list(itertools.takewhile(lambda index: _upper(candidates[index]) <= loss, _compared(candidates)))


def provable_losses(candidates: Sequence[Candidate]) -> list[tuple[int, float]]:
    """Return the least loss that the data supports for each compared candidate, in their order, with its index.

    Args:
        candidates: Measured candidates.
    """
    order = _compared(candidates)
    return list(zip(order, itertools.accumulate((_upper(candidates[index]) for index in order), max), strict=True))


def safest(candidates: Sequence[Candidate]) -> Candidate | None:
    """Return the first candidate in the order of comparison; None if none is faster than the most accurate level.

    Args:
        candidates: Measured candidates.
    """
    return next((candidates[index] for index in _compared(candidates)), None)


def queries_for(candidates: Sequence[Candidate], loss: float) -> float:
    """Return about how many queries of the selection part would show that some candidate loses at most `loss`.

    Args:
        candidates: Measured candidates.
        loss: Maximum loss of score.

    Returns:
        The number for the first candidate in the order of comparison; infinity if it loses more, or there is none.
    """
    first = safest(candidates)
    return math.inf if first is None or first.loss is None else first.loss.queries_for(loss)


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


def _check_rows(candidates: Sequence[Candidate], loss: float) -> None:
    """Refuse a loss that only the number of queries keeps a faster candidate from."""
    first, needed = safest(candidates), queries_for(candidates, loss)
    if first is None or first.loss is None or math.isinf(needed):
        return
    found, accepted = first.loss, math.ceil(first.loss.upper * 1e4) / 1e4
    differs = "" if found.discordant is None else f"only one of the two is right on {found.discordant:.1%} of them, "
    raise InvalidArgument(
        f"accuracy_loss is {loss:g}, which the {found.queries} queries of the selection part cannot verify; accepted "
        f"is {accepted:.4f} or more. '{first.name}' is the safest candidate that is faster than the most accurate "
        f"level: {differs}it loses {found.measured:.4f} on them and, with 95 % confidence, at most {found.upper:.4f} "
        f"on new ones. Give about {math.ceil(needed)} queries to the selection part, or set an accuracy_loss that is "
        "accepted"
    )


def _excess(candidate: Candidate, target: Target) -> float:
    """Return the largest quotient of a percentile of the latency and its limit; 0 without limits."""
    latency = candidate.selection.latency
    limits = ((latency.p75, target.p75_ms), (latency.p99, target.p99_ms))
    return max((found / limit for found, limit in limits if limit is not None), default=0.0)


def _upper(candidate: Candidate) -> float:
    return math.inf if candidate.loss is None else candidate.loss.upper


def _compared(candidates: Sequence[Candidate]) -> list[int]:
    """Return the indices of the compared candidates in their order."""
    places = {index: each.loss.place for index, each in enumerate(candidates) if each.loss is not None}
    return sorted(places, key=lambda index: places[index])


def _cascades(candidates: Sequence[Candidate]) -> list[int]:
    """Return the indices of cascades, and of single levels that some cascade begins with."""
    first = {candidate.levels[0] for candidate in candidates if len(candidate.levels) > 1}
    return [
        index for index, candidate in enumerate(candidates) if len(candidate.levels) > 1 or candidate.levels[0] in first
    ]
