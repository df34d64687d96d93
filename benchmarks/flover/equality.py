"""Tokens that are served, held to those that transformers generates for each prompt by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.flover.bench import Bench
from benchmarks.flover.load import Load, poisson
from benchmarks.flover.reference import References

#: Leads below this may turn by rounding alone.
TIE = 1e-4
# Nearer to each other than the time that a generation takes: most run together.
_GAP_S = 0.05


@dataclass(frozen=True, slots=True)
class Equality:
    """Generations against the reference's.

    Attributes:
        prompts: that were sent.
        equal: whose tokens are all the reference's.
        ties: that differ first where the reference's two best logits are all but equal.
        tokens: of all prompts.
        same: of them those before the first difference.
    """

    prompts: int
    equal: int
    ties: int
    tokens: int
    same: int

    @property
    def share(self) -> float:
        """Of the prompts without those with ties, the ones that are equal."""
        return self.equal / max(1, self.prompts - self.ties)


def measure(bench: Bench, model: str, references: References, count: int) -> Equality:
    """Send prompts at random times, and compare."""
    load = Load(
        "references",
        tuple(poisson(count, _GAP_S, seed=7)),
        tuple(tuple(prompt.tolist()) for prompt in references.prompts[:count]),
        tuple(len(tokens) for tokens in references.tokens[:count]),
    )
    return compare(bench.tokens(model, load), references)


def compare(found: Sequence[Sequence[int]], references: References) -> Equality:
    """Hold tokens to those of the first so many references."""
    equal = ties = tokens = same = 0
    for got, wanted, leads in zip(found, references.tokens, references.leads, strict=False):
        different = np.flatnonzero(np.asarray(got) != wanted)
        first = int(different[0]) if len(different) else len(wanted)
        tokens += len(wanted)
        same += first
        if first == len(wanted):
            equal += 1
        elif leads[first] < TIE:
            ties += 1
    return Equality(len(found), equal, ties, tokens, same)
