"""Estimate of the time that the trainings of prompts still take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True, slots=True)
class PromptTraining:
    """One γ of a task on a transformer.

    Attributes:
        work: Relative duration of an epoch, such as images times tokens.
        most: Largest number of epochs.
    """

    work: float
    most: int


class RemainingTime:
    """Estimates the remaining time from the epochs that were timed.

    Args:
        trainings: All trainings by name.
    """

    def __init__(self, trainings: Mapping[str, PromptTraining]) -> None:
        self._trainings = dict(trainings)
        self._finished = dict.fromkeys(trainings, 0)
        self._ended: dict[str, int] = {}
        self._seconds = self._work = 0.0

    def timed(self, name: str, epoch: int, seconds: float) -> None:
        """Record that an epoch has ended, and its duration."""
        self._finished[name] = epoch
        self._seconds += seconds
        self._work += self._trainings[name].work

    def ended(self, name: str) -> None:
        """Record that a training has ended."""
        self._ended[name] = self._finished[name]

    def estimate(self) -> tuple[float, float] | None:
        """Return the expected and the largest remaining time in seconds; None before an epoch was timed.

        Trainings are expected to end after the mean number of epochs of those that ended while they were timed, but not
        before their next epoch.
        """
        if not self._work:
            return None
        ended = [epochs for epochs in self._ended.values() if epochs]
        expected = most = 0.0
        for name, training in self._trainings.items():
            if name in self._ended:
                continue
            left = training.most - self._finished[name]
            usual = fmean(ended) - self._finished[name] if ended else left
            most += training.work * left
            expected += training.work * min(left, max(usual, 1.0))
        per_work = self._seconds / self._work
        return per_work * expected, per_work * most
