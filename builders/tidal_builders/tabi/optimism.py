"""How much too good the score of a chosen candidate may look, because it was chosen among many."""

from __future__ import annotations

import math

from tidal.tabi.manifest import Candidate, Metric


def optimism_warning(metric: Metric, compared: int, rows: int, chosen: Candidate) -> str | None:
    """A warning where more candidates were compared than there are queries to compare them on; None elsewhere.

    Args:
        metric: what the scores are.
        compared: candidates whose scores the choice could depend on.
        rows: queries of the selection part.
        chosen: the candidate that was chosen.
    """
    if compared <= rows:
        return None
    error = standard_error(metric, chosen.selection.score, rows)
    expected = ""
    if error is not None:
        expected = (
            f" by up to {optimism_bound(error, compared):.4f} (its standard error, {error:.4f}, times the square root "
            f"of 2 ln {compared}: what the best of that many independent candidates of equal merit gains by chance; "
            "similar candidates gain less)"
        )
    return (
        f"{compared} candidates were compared on {rows} selection rows: the score of the chosen one there, "
        f"{chosen.selection.score:.4f}, is expected to be too high{expected}. Its score on the report part, "
        f"{chosen.reported.score:.4f}, decided nothing: rely on that, and give more labelled rows"
    )


def standard_error(metric: Metric, score: float, rows: int) -> float | None:
    """Standard error of a score by the usual large-sample formulas; None of r2, which has none without its residuals.

    Args:
        metric: accuracy (binomial), or a correlation (Fisher).
        score: the score.
        rows: queries that it is from.
    """
    if metric == "r2":
        return None
    if metric == "accuracy":
        # With one right and one wrong answer more: that all answers are right does not make a score exact.
        share = (score * rows + 1) / (rows + 2)
        return math.sqrt(share * (1 - share) / rows)
    return (1 - score**2) / math.sqrt(rows)


def optimism_bound(error: float, compared: int) -> float:
    """Upper bound of the expected maximum of so many normal variables of mean 0.

    Args:
        error: their standard deviation.
        compared: how many there are.
    """
    return error * math.sqrt(2 * math.log(compared))
