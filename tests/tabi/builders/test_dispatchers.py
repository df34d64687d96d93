"""The cut-offs and slopes that the search tries for a combination of levels."""

from __future__ import annotations

import numpy as np
import pytest

from tidal.tabi.manifest import Calibration
from tidal_builders.tabi.data import LevelOutputs
from tidal_builders.tabi.evaluate import LevelChain
from tidal_builders.tabi.search import (
    CUTOFFS,
    SLOPES,
    dispatchers,
)
from tidal_builders.tabi.weights import Tuner, by_accuracy


def _chains(good: float, count: int = 400, seed: int = 0) -> tuple[LevelChain, LevelChain, float]:
    """Chains of the calibration and the selection part, and the mean score of the levels on the former.

    The confidence of the first level is exact; of the answers of the last one, the share `good` is right.
    """
    chains, scores = [], []
    for part in (0, 1):
        generator = np.random.default_rng([seed, part])
        sure = generator.uniform(0.5, 1, count)
        right = generator.random(count) < sure
        first = np.stack([np.log(sure), np.log(1 - sure)], axis=1).astype(np.float32)
        last = np.where((generator.random(count) < good)[:, None], [[3.0, 0.0]], [[0.0, 3.0]]).astype(np.float32)
        truth = np.where(right, 0, 1)
        last = np.where(truth[:, None] == 1, last[:, ::-1], last)
        outputs = [LevelOutputs(first, None, np.ones(count)), LevelOutputs(last, None, np.full(count, 4.0))]
        chain = LevelChain(
            outputs,
            [Calibration()] * 2,
            truth,
            words=np.zeros(count, np.int64),
            removed=np.zeros((1, count), np.int64),
            metric="accuracy",
        )
        chains.append(chain)
        scores.append((chain.alone(0) + chain.alone(1)) / 2)
    return chains[0], chains[1], scores[0]


@pytest.mark.parametrize("good", [0.6, 0.8, 0.97])
def test_cutoffs_descend_until_the_score_is_below_the_mean_of_the_levels(good: float) -> None:
    calibration, selection, least = _chains(good)
    found = list(dispatchers((0, 1), None, calibration, selection, least))
    stopped = 0
    for slope in SLOPES:
        for weighting in ("accuracy", "tuned"):
            mine = [each for each in found if (each.slope, each.weighting) == (slope, weighting)]
            assert [each.cutoff for each in mine] == list(CUTOFFS[: len(mine)])
            assert all(each.search_score >= least - 1e-9 for each in mine)
            if mine and len(mine) < len(CUTOFFS):
                stopped += 1
                # The score at the next cut-off is below the limit.
                next_cutoff = CUTOFFS[len(mine)]
                reach = calibration.reach(next_cutoff, slope)
                weights = by_accuracy(calibration, reach)
                if weighting == "tuned":
                    weights = Tuner(calibration).tune(reach, weights)
                assert calibration.score(reach, weights) < least
    assert stopped or good != 0.97
    assert CUTOFFS[:3] == (0.95, 0.9, 0.85)
    assert CUTOFFS[-1] == 0.05


def test_cutoffs_end_at_the_first_that_is_below_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    calibration, selection, _ = _chains(0.9)
    scores = {0.95: 0.8, 0.9: 0.7, 0.85: 0.5, 0.8: 0.69, 0.75: 0.9}
    asked = []
    of = {calibration.reach(cutoff, slope).tobytes(): cutoff for cutoff in scores for slope in SLOPES}

    def score(reach: np.ndarray, weights: object) -> float:
        asked.append(of[reach.tobytes()])
        return scores[asked[-1]]

    monkeypatch.setattr(calibration, "score", score)
    found = list(dispatchers((0, 1), None, calibration, selection, 0.7))
    runs = len(SLOPES) * 2
    assert [each.cutoff for each in found] == [0.95, 0.9] * runs
    assert asked == [0.95, 0.9, 0.85] * runs


def test_no_cutoff_is_kept_if_the_largest_is_below_the_limit() -> None:
    calibration, selection, _ = _chains(0.8)
    assert list(dispatchers((0, 1), None, calibration, selection, 1.01)) == []
