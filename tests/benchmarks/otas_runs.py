"""Tasks, types of queries, and outcomes for tests of OTAS's live benchmark."""

from __future__ import annotations

from benchmarks.otas.live.artefacts import LiveTask
from benchmarks.otas.live.load import types_of
from benchmarks.otas.live.outcome import OtasOutcome
from benchmarks.otas.live.rounds import OtasRound, OtasRun
from benchmarks.otas.live.systems import SYSTEMS

ACCURACIES = {"easy": 0.9, "middling": 0.8, "hard": 0.5}
TASKS = [
    LiveTask(
        task, tuple(f"{task} {row}".encode() for row in range(40)), tuple(f"{task} {row % 3}" for row in range(40))
    )
    for task in ACCURACIES
]
TYPES = types_of(ACCURACIES)


def an_outcome(utility: float, gamma: int = 0, first_half: float = 0.5) -> OtasOutcome:
    """An outcome of ten queries in two intervals, of which the first earned a share."""
    answered = {"easy": {str(gamma): (8, 6)}}
    parts = [first_half * utility, (1 - first_half) * utility]
    return OtasOutcome(
        10, 10.0, utility, parts, (6, 2, 1, 1), {str(gamma): 8}, answered, 4.0, 0.5, 0.4, 0.0, "", []
    )  # fmt: skip


def a_run() -> OtasRun:
    """Three rounds at a load of 1, in which every system earns once, twice and three times as much."""
    earned = dict(zip(SYSTEMS, (6.0, 5.5, 5.0, 4.0, 5.5, 2.0, 5.9), strict=True))
    rounds = [
        OtasRound({"1.0": 100.0}, {"1.0": {name: an_outcome(turn * each) for name, each in earned.items()}})
        for turn in (1, 2, 3)
    ]
    return OtasRun((300.0, 100.0, 30.0), 100.0, {"1.0": {-8: 0.3, -4: 0.5, 2: 0.6, 4: 0.4}}, rounds)
