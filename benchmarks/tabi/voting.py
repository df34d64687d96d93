"""A parallel voting ensemble of smaller models, as in Cocktail; it answers when the slowest model has voted."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# The ensemble has the same accuracy target as the cascade.
from benchmarks.tabi.variants import SLACK


@dataclass(frozen=True, slots=True)
class VotingEnsemble:
    """A voting ensemble.

    Attributes:
        members: Names of the models, the fastest first.
        weights: Weight of a model's vote for a label: the share of its votes for that label that are correct.
        accuracy: Accuracy on the held-out queries.
        equal: Whether that reaches the large model's accuracy minus the cascade's slack.
    """

    members: tuple[str, ...]
    weights: Mapping[str, Mapping[str, float]]
    accuracy: float
    equal: bool

    def vote(self, labels: Mapping[str, str]) -> str:
        """Return the label with the highest weight.

        Args:
            labels: Label by member.
        """
        return _vote(self.members, self.weights, labels)


def find_ensemble(answers: Mapping[str, Sequence[str]], truth: Sequence[str], large: str) -> VotingEnsemble | None:
    """Return the fastest ensemble of smaller models that is as accurate as the large one, or the most accurate one.

    The latency of an ensemble is that of its slowest member.

    Args:
        answers: Labels by model on the held-out queries, the fastest model first.
        truth: Correct labels of these queries.
        large: Name of the large model.
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
) -> VotingEnsemble:
    weights = {name: _reliability(answers[name], truth) for name in members}
    votes = [
        _vote(members, weights, dict(zip(members, labels, strict=True)))
        for labels in zip(*(answers[name] for name in members), strict=True)
    ]
    accuracy = _accuracy(votes, truth)
    return VotingEnsemble(members, weights, accuracy, accuracy >= wanted)


def _vote(members: Sequence[str], weights: Mapping[str, Mapping[str, float]], labels: Mapping[str, str]) -> str:
    votes: dict[str, float] = {}
    # The last member is the most accurate: its label wins a tie.
    for name in reversed(members):
        votes[labels[name]] = votes.get(labels[name], 0.0) + weights[name].get(labels[name], 0.0)
    return max(votes, key=votes.__getitem__)


def _reliability(found: Sequence[str], truth: Sequence[str]) -> dict[str, float]:
    """Return the share of correct answers among those with a label, by label."""
    right: dict[str, list[bool]] = {}
    for label, wanted in zip(found, truth, strict=True):
        right.setdefault(label, []).append(label == wanted)
    return {label: sum(each) / len(each) for label, each in right.items()}


def _accuracy(found: Sequence[str], truth: Sequence[str]) -> float:
    return sum(a == b for a, b in zip(found, truth, strict=True)) / len(truth)
