"""How far the score of a chosen candidate may be too high because it was chosen among many."""

from __future__ import annotations

import math

from tidal.tabi.manifest import Candidate, Metric


def optimism_warning(metric: Metric, compared: int, rows: int, chosen: Candidate) -> str | None:
    """Return a warning if more candidates were compared than there are queries in the selection part, else None.

    Args:
        metric: Metric of the scores.
        compared: Number of candidates whose scores the choice could depend on.
        rows: Number of queries of the selection part.
        chosen: Candidate that was chosen.
    """
    if compared <= rows:
        return None
    error = standard_error(metric, chosen.selection.score, rows)
    expected = ""
    if error is not None:
        expected = (
            f" by up to {optimism_bound(error, compared):.4f} (its standard error, {error:.4f}, times the square root "
            f"of 2 ln {compared}: the gain by chance of the best of that many independent candidates of equal quality; "
            "similar candidates gain less)"
        )
    return (
        f"{compared} candidates were compared on {rows} selection rows: the score of the chosen one there, "
        f"{chosen.selection.score:.4f}, is expected to be too high{expected}. Its score on the report part, "
        f"{chosen.reported.score:.4f}, had no influence on the choice: rely on that, and give more labelled rows"
    )


def standard_error(metric: Metric, score: float, rows: int) -> float | None:
    """Return the standard error of a score by the large-sample formulas; None for r2, which needs the residuals.

    Args:
        metric: Metric of the score: accuracy (binomial) or a correlation (Fisher).
        score: Measured score.
        rows: Number of queries that it is from.
    """
    if metric == "r2":
        return None
    if metric == "accuracy":
        # With one right and one wrong answer added: a score is not exact because all answers are right.
        share = (score * rows + 1) / (rows + 2)
        return math.sqrt(share * (1 - share) / rows)
    return (1 - score**2) / math.sqrt(rows)


def optimism_bound(error: float, compared: int) -> float:
    """Return an upper bound of the expected maximum of normal variables with mean 0.

    Args:
        error: Standard deviation of the variables.
        compared: Number of variables.
    """
    return error * math.sqrt(2 * math.log(compared))
