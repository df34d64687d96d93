"""Outputs of classifiers, computed per batch, against those of each row alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidal.serving.classes import CLASS_OUTPUTS, ClassScores, gather, label_array, score_rows

LABELS = ("no", "yes", "vielleicht später")


def scores(rows: int, seed: int) -> ClassScores:
    logits = np.random.default_rng(seed).normal(0, 3, (rows, len(LABELS))).astype(np.float32)
    return ClassScores(logits, label_array(LABELS))


def alone(logits: npt.NDArray[np.float32]) -> dict[str, list[object]]:
    """What follows from the logits of one row, in plain Python."""
    powers = [float(np.exp(np.float64(value) - max(logits))) for value in logits]
    return {
        "logits": logits.tolist(),
        "probabilities": [power / sum(powers) for power in powers],
        "label": [LABELS[max(range(len(LABELS)), key=lambda place: float(logits[place]))].encode()],
    }


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), min_size=1, max_size=8))
def test_outputs_of_a_request_are_those_of_its_rows(places: list[tuple[int, int]]) -> None:
    batches = [scores(5, seed) for seed in range(3)]
    rows = [(batches[batch], index) for batch, index in places]
    for output in CLASS_OUTPUTS:
        found = gather(rows, output)
        assert len(found) == len(rows)
        for row, (batch, index) in zip(found.tolist(), rows, strict=True):
            expected = alone(batch.logits[index])[output]
            assert row == (expected if output == "label" else pytest.approx(expected, rel=1e-5))


def test_consecutive_rows_are_not_copied() -> None:
    batch = scores(6, 0)
    assert np.shares_memory(gather([(batch, 2), (batch, 3)], "probabilities"), batch.probabilities)
    assert not np.shares_memory(gather([(batch, 3), (batch, 2)], "probabilities"), batch.probabilities)


def test_rows_are_scored_together_by_head_and_gathered_in_order() -> None:
    calls: list[tuple[str, list[int]]] = []
    batch = np.arange(12, dtype=np.float32).reshape(6, 2)

    def score(head: str, indices: list[int]) -> ClassScores:
        calls.append((head, indices))
        return ClassScores(batch[indices] * (1 if head == "up" else -1), label_array([f"{head} 0", f"{head} 1"]))

    up, down = "up", "down"
    rows = score_rows([up, down, up, up, down, up], score)
    assert calls == [("up", [0, 2, 3, 5]), ("down", [1, 4])]
    for index, sign in enumerate((1, -1, 1, 1, -1, 1)):
        np.testing.assert_array_equal(gather([rows[index]], "logits"), batch[index : index + 1] * sign)
    assert gather([rows[2], rows[3]], "label").tolist() == [[b"up 1"], [b"up 1"]]
    assert gather([rows[4], rows[1]], "label").tolist() == [[b"down 0"], [b"down 0"]]
    np.testing.assert_array_equal(gather([rows[4], rows[1]], "logits"), -batch[[4, 1]])
    np.testing.assert_allclose(gather([rows[0], rows[5]], "probabilities").sum(1), 1, rtol=1e-6)
