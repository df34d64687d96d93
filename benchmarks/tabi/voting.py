"""A parallel voting ensemble of smaller models, as Cocktail forms it; it answers when the slowest has voted."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# What the ensemble may lack of the large model's accuracy, which is what the cascade's target leaves too.
from benchmarks.tabi.variants import SLACK


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Models that vote, fastest first, each vote weighing what its model is right at when it names that label.

    `equal` says whether it is as accurate as the large model on the held-out queries, less the cascade's slack.
    """

    members: tuple[str, ...]
    weights: Mapping[str, Mapping[str, float]]
    accuracy: float
    equal: bool

    def vote(self, labels: Mapping[str, str]) -> str:
        """The label with the most weight; `labels` has one by member."""
        return _vote(self.members, self.weights, labels)


def find_ensemble(answers: Mapping[str, Sequence[str]], truth: Sequence[str], large: str) -> Ensemble | None:
    """The ensemble of models other than the large one whose slowest member is fastest, of those as accurate as it.

    Where none is, the most accurate one.

    Args:
        answers: labels by model, fastest model first, on held-out queries.
        truth: of these queries.
        large: the large model's name.
    """
    wanted = _accuracy(answers[large], truth) - SLACK
    smaller = [name for name in answers if name != large]
    found = []
    for last in range(1, len(smaller)):
        for count in range(1, last + 1):
            for others in itertools.combinations(smaller[:last], count):
                found.append(_ensemble((*others, smaller[last]), answers, truth, wanted))
    equal = [each for each in found if each.equal]
    if equal:
        return equal[0]
    return max(found, key=lambda each: each.accuracy, default=None)


def _ensemble(
    members: tuple[str, ...], answers: Mapping[str, Sequence[str]], truth: Sequence[str], wanted: float
) -> Ensemble:
    weights = {name: _reliability(answers[name], truth) for name in members}
    votes = [
        _vote(members, weights, dict(zip(members, labels, strict=True)))
        for labels in zip(*(answers[name] for name in members), strict=True)
    ]
    accuracy = _accuracy(votes, truth)
    return Ensemble(members, weights, accuracy, accuracy >= wanted)


def _vote(members: Sequence[str], weights: Mapping[str, Mapping[str, float]], labels: Mapping[str, str]) -> str:
    votes: dict[str, float] = {}
    # The last member is the most accurate: between equals its label is named first.
    for name in reversed(members):
        votes[labels[name]] = votes.get(labels[name], 0.0) + weights[name].get(labels[name], 0.0)
    return max(votes, key=votes.__getitem__)


def _reliability(found: Sequence[str], truth: Sequence[str]) -> dict[str, float]:
    """Share of right answers among those that name a label, by label."""
    right: dict[str, list[bool]] = {}
    for label, wanted in zip(found, truth, strict=True):
        right.setdefault(label, []).append(label == wanted)
    return {label: sum(each) / len(each) for label, each in right.items()}


def _accuracy(found: Sequence[str], truth: Sequence[str]) -> float:
    return sum(a == b for a, b in zip(found, truth, strict=True)) / len(truth)
