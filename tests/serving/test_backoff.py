"""Pauses between retries."""

from __future__ import annotations

import math

from tidal.serving.backoff import backoff_s


def test_pauses_double_up_to_the_limit() -> None:
    assert [backoff_s(retry, 0.05, 1.0) for retry in range(7)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_any_number_of_retries_gives_a_finite_pause() -> None:
    assert backoff_s(10**6, 0.1, 10.0) == 10.0
    assert math.isfinite(backoff_s(10**6, 0.1, math.inf))
