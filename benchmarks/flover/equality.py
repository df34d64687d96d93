"""Compares served tokens with those that transformers generates for each prompt separately."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.flover.bench import FloverBench
from benchmarks.flover.load import FloverLoad, poisson
from benchmarks.flover.reference import References

#: Rounding alone can reverse leads below this.
TIE = 1e-4
# Shorter than the duration of a generation, so that most run together.
_GAP_S = 0.05


@dataclass(frozen=True, slots=True)
class Equality:
    """Served generations compared with the reference's.

    Attributes:
        prompts: Number of prompts sent.
        equal: Number of prompts whose tokens are all equal.
        ties: Number of prompts that first differ at a token whose two best logits are almost equal.
        tokens: Number of tokens of all prompts.
        same: Number of tokens before the first difference.
    """

    prompts: int
    equal: int
    ties: int
    tokens: int
    same: int

    @property
    def share(self) -> float:
        """Share of equal prompts, without those with ties."""
        return self.equal / max(1, self.prompts - self.ties)


def measure(bench: FloverBench, model: str, references: References, count: int) -> Equality:
    """Send prompts at random times, and compare their tokens."""
    load = FloverLoad(
        "references",
        tuple(poisson(count, _GAP_S, seed=7)),
        tuple(tuple(prompt.tolist()) for prompt in references.prompts[:count]),
        tuple(len(tokens) for tokens in references.tokens[:count]),
    )
    return compare(bench.tokens(model, load), references)


def compare(found: Sequence[Sequence[int]], references: References) -> Equality:
    """Compare generated tokens with the first references."""
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
