"""Candidates of a cascade to compare, and the cascade without each of its parts, as manifests."""

from __future__ import annotations

from dataclasses import dataclass

from tidal.errors import InvalidArgument
from tidal.tabi.manifest import Candidate, TabiManifest, Target
from tidal.tabi.selection import select

# Difference between the large model's accuracy and the target, as in the paper (Table 2: 0.2 to 2.6 points).
SLACK = 0.005
# A sigmoid this steep is a step.
_STEP = 1000.0

SMALL, MIDDLE, LARGE = "small", "middle", "large"
TABI = "Tabi"
TWO_LEVELS = "Tabi, two levels"
EXACT = "Tabi, large's accuracy"
NO_PRUNING = "Tabi, no pruning"
NO_ENSEMBLE = "Tabi, no ensemble"
NO_ARLO = "Tabi, no Arlo"
UNCALIBRATED = "Tabi, uncalibrated"
HARD = "Tabi, hard cut-off"
THREE_LEVELS = "Tabi, three levels"
PADDED = "_padded"


@dataclass(frozen=True, slots=True)
class TargetChoice:
    """The candidates for an accuracy target, chosen by the figures of the selection part.

    Attributes:
        target: Accuracy to reach.
        large: The large model alone.
        single: Fastest single model that meets the target (INFaaS).
        tabi: Fastest candidate that meets it.
        two_levels: Fastest candidate of two levels that meets it.
        three_levels: Fastest candidate of three levels that meets it.
        exact: Fastest candidate that is as accurate as the large model.
    """

    target: float
    large: Candidate
    single: Candidate
    tabi: Candidate
    two_levels: Candidate | None
    three_levels: Candidate | None
    exact: Candidate


def choose(manifest: TabiManifest) -> TargetChoice:
    """Choose candidates for the large model's accuracy minus the slack.

    Args:
        manifest: Manifest with all candidates.
    """
    large = _single(manifest, large_level(manifest))
    target = large.selection.score - SLACK
    single = _fastest(manifest, target, 1)
    assert single is not None  # the large model is one
    three = _fastest(manifest, target, 3)
    two = _fastest(manifest, target, 2)
    return TargetChoice(
        target=target,
        large=large,
        single=single,
        tabi=manifest.candidates[select(manifest.candidates, Target(accuracy=target))],
        two_levels=two,
        three_levels=three or (None if two is None else with_middle(manifest, two)),
        exact=manifest.candidates[select(manifest.candidates, Target(accuracy=large.selection.score))],
    )


def large_level(manifest: TabiManifest) -> int:
    """Return the index of the large model, which is not necessarily the most accurate one."""
    return next(index for index, level in enumerate(manifest.levels) if level.name == LARGE)


def fronts(manifest: TabiManifest, choice: TargetChoice) -> dict[str, TabiManifest]:
    """Return the manifests to serve, by system; the variants are of the fastest candidate of two levels.

    Impossible variants are left out: a candidate without pruning has no variant without pruning, and Eq. 4 cannot
    express a hard cut-off of 0.5 or less.

    Args:
        manifest: Manifest with all candidates.
        choice: Chosen candidates.
    """
    found = {TABI: _only(manifest, choice.tabi)}
    if choice.exact != choice.tabi:
        found[EXACT] = _only(manifest, choice.exact)
    if choice.three_levels is not None and choice.three_levels != choice.tabi:
        found[THREE_LEVELS] = _only(manifest, choice.three_levels)
    whole = choice.two_levels
    if whole is None:
        return found
    if whole != choice.tabi:
        found[TWO_LEVELS] = _only(manifest, whole)
    if whole.pruning is not None:
        found[NO_PRUNING] = _only(manifest, whole.model_copy(update={"pruning": None}))
    found[NO_ENSEMBLE] = _only(manifest, without_ensemble(whole))
    found[NO_ARLO] = padded(_only(manifest, whole))
    found[UNCALIBRATED] = uncalibrated(_only(manifest, whole))
    if whole.cutoff is not None and whole.cutoff > 0.5:
        found[HARD] = _only(manifest, hard_cutoff(whole))
    return found


def without_ensemble(candidate: Candidate) -> Candidate:
    """Return a candidate whose last level that ran answers alone."""
    weights = tuple((*(0.0,) * (len(entry) - 1), 1.0) for entry in candidate.weights)
    return candidate.model_copy(update={"weights": weights})


def hard_cutoff(candidate: Candidate) -> Candidate:
    """Return a candidate that returns every query above c and re-routes every other one.

    A steep sigmoid has its step in the middle between its own c and 1 (Eq. 4), so that c is set to 2c - 1, and the
    original one has to be above 0.5.
    """
    assert candidate.cutoff is not None
    return candidate.model_copy(update={"cutoff": 2 * candidate.cutoff - 1, "slope": _STEP})


def uncalibrated(manifest: TabiManifest) -> TabiManifest:
    """Return a manifest whose confidences are those of the plain softmax (T = 1)."""
    levels = tuple(
        level.model_copy(update={"calibration": level.calibration.model_copy(update={"temperature": 1.0})})
        for level in manifest.levels
    )
    return manifest.model_copy(update={"levels": levels})


def padded(manifest: TabiManifest) -> TabiManifest:
    """Return a manifest over levels that pad every text to their maximum length."""
    levels = tuple(level.model_copy(update={"model": level.model + PADDED}) for level in manifest.levels)
    return manifest.model_copy(update={"levels": levels})


def with_middle(manifest: TabiManifest, two: Candidate) -> Candidate | None:
    """Add the level between two to a candidate, with weights by the levels' accuracy; None if there is no such level.

    Args:
        manifest: Manifest of the cascade.
        two: Candidate of two levels.
    """
    between = range(two.levels[0] + 1, two.levels[-1])
    if not between:
        return None
    levels = (two.levels[0], between[0], two.levels[-1])
    weights = tuple(_by_score(manifest, levels[:count]) for count in (1, 2, 3))
    update = {"name": f"{two.name}, and a level between", "levels": levels, "weights": weights}
    return two.model_copy(update=update)


def break_even(manifest: TabiManifest) -> tuple[float, Candidate] | None:
    """Return the highest accuracy target for which a single model is the fastest candidate, and that model (§7.5).

    Only targets that some cascade meets are considered; None if a cascade is faster at every one.

    Args:
        manifest: Manifest with all candidates.
    """
    cascades = [each for each in manifest.candidates if len(each.levels) > 1]
    if not cascades:
        return None
    highest = max(each.selection.score for each in cascades)
    for target in sorted({each.selection.score for each in manifest.candidates}, reverse=True):
        if target <= highest:
            fastest = manifest.candidates[select(manifest.candidates, Target(accuracy=target))]
            if len(fastest.levels) == 1:
                return target, fastest
    return None


def _single(manifest: TabiManifest, level: int) -> Candidate:
    return next(each for each in manifest.candidates if each.levels == (level,))


def _fastest(manifest: TabiManifest, target: float, levels: int) -> Candidate | None:
    kind = [each for each in manifest.candidates if len(each.levels) == levels]
    try:
        return kind[select(kind, Target(accuracy=target))] if kind else None
    except InvalidArgument:
        return None


def _by_score(manifest: TabiManifest, levels: tuple[int, ...]) -> tuple[float, ...]:
    scores = [manifest.levels[level].score for level in levels]
    return tuple(score / sum(scores) for score in scores)


def _only(manifest: TabiManifest, candidate: Candidate) -> TabiManifest:
    """Return a manifest with one candidate only."""
    return manifest.model_copy(update={"candidates": (candidate,), "chosen": 0})
