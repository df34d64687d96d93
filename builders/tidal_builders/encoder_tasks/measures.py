"""How far an engine's answers may differ from the source model's, by task and precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tidal.encoder_tasks.entities import LabelScheme, find_entities
from tidal.engines import Precision
from tidal_builders.encoder_tasks.masked_samples import MAX_MASKS
from tidal_builders.tolerances import DEFAULT_TOLERANCE, LEAST_AGREEMENT, VECTOR_AGREEMENT, VECTOR_TOLERANCE

# Longest answer in tokens that spans are compared by, as in transformers' pipeline.
_LONGEST_ANSWER = 15

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure of the difference between an engine and the source model.

    Attributes:
        error_name: Name of `error`, such as "largest logit error".
        error: Error of a sample from the engine's output and the source model's, both without padding.
        tolerance: Accepted error by precision, unless a spec names one.
        agreement_name: Name of `agreement` in manifests.
        agreement: Agreement over all samples from 0 to 1, from the outputs of the engine and the source model.
        least: Least agreement by precision.
        miss: Clause for an agreement below the least one, with places for both.
    """

    error_name: str
    error: Callable[[Array, Array], float]
    tolerance: Mapping[str, float]
    agreement_name: str
    agreement: Callable[[Sequence[Array], Sequence[Array]], float]
    least: Mapping[str, float]
    miss: str

    def limits(self, precision: Precision, tolerance: float | None) -> tuple[float, float]:
        """The accepted error and the least agreement.

        Args:
            precision: Precision of the engine.
            tolerance: Accepted error of the spec; None for the default of the precision.
        """
        return self.tolerance[precision] if tolerance is None else tolerance, self.least[precision]


def largest_difference(got: Array, expected: Array) -> float:
    """Largest absolute difference; infinite for NaN, which compares as false and would pass any limit."""
    difference = np.abs(got - expected)
    return float("inf") if np.isnan(difference).any() else float(difference.max())


def same_labels(got: Sequence[Array], expected: Sequence[Array]) -> float:
    """Share of rows, or of tokens, with the same most likely label."""
    same = [np.ravel(a.argmax(-1) == b.argmax(-1)) for a, b in zip(got, expected, strict=True)]
    return float(np.concatenate(same).mean())


def spearman(got: Sequence[Array], expected: Sequence[Array]) -> float:
    """Rank correlation of all values; 0 if it is negative or undefined."""
    from scipy.stats import spearmanr

    values = spearmanr(np.concatenate([np.ravel(a) for a in got]), np.concatenate([np.ravel(a) for a in expected]))
    return max(0.0, float(np.nan_to_num(values.statistic)))


def cosine_error(got: Array, expected: Array) -> float:
    """1 - the cosine of two vectors; infinite if it is undefined."""
    a, b = got.astype(np.float64), expected.astype(np.float64)
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    if not lengths > 0:
        return 0.0 if not a.any() and not b.any() else float("inf")
    return max(0.0, 1 - float(a @ b) / lengths)


def same_decisions(got: Sequence[Array], expected: Sequence[Array]) -> float:
    """Share of independent labels on the same side of a probability of 0.5."""
    return float(np.mean([np.mean((a > 0) == (b > 0)) for a, b in zip(got, expected, strict=True)]))


def similarity_ranks(got: Sequence[Array], expected: Sequence[Array]) -> float:
    """Rank correlation of the cosines of all pairs of samples; 0 if it is negative or undefined."""
    above = np.triu_indices(len(got), 1)
    return spearman([_cosines(got)[above]], [_cosines(expected)[above]])


def _cosines(vectors: Sequence[Array]) -> Floats:
    """Cosine of every two vectors, [samples, samples]."""
    stacked = np.stack(vectors).astype(np.float64)
    stacked /= np.maximum(np.linalg.norm(stacked, axis=1, keepdims=True), 1e-12)
    return np.asarray(stacked @ stacked.T)


def entity_f1(got: Sequence[Array], expected: Sequence[Array], scheme: LabelScheme) -> float:
    """F1 of the entities of all samples, each equal only with its label, first and last token.

    Args:
        got: Logits of the engine, [tokens, labels] by sample.
        expected: Logits of the source model, [tokens, labels] by sample.
        scheme: Scheme of the labels.

    Returns:
        F1; the share of tokens with the same label if neither model finds an entity, which F1 does not define.
    """
    found, wanted = (
        {(sample, *each) for sample, logits in enumerate(side) for each in _entities(logits, scheme)}
        for side in (got, expected)
    )
    if not found and not wanted:
        return same_labels(got, expected)
    return 2 * len(found & wanted) / (len(found) + len(wanted))


def _entities(logits: Array, scheme: LabelScheme) -> set[tuple[str, int, int]]:
    """Label, first token and token after the last of each entity."""
    tokens = np.arange(len(logits))
    places = np.stack([tokens, tokens + 1], axis=1)
    found = find_entities(logits, places, np.zeros(len(logits), np.bool_), scheme, "simple")
    return set(zip(found.labels, found.starts.tolist(), found.ends.tolist(), strict=True))


def same_spans(got: Sequence[Array], expected: Sequence[Array]) -> float:
    """Share of samples with the same most likely span, from logits [tokens, 2] of first and last tokens."""
    return float(np.mean([_best_span(a) == _best_span(b) for a, b in zip(got, expected, strict=True)]))


def _best_span(logits: Array) -> int:
    """Number of the span with the largest sum of logits: first token * tokens + last token."""
    sums = logits[:, :1] + logits[:, 1]
    within = np.triu(np.tril(np.ones(sums.shape, np.bool_), _LONGEST_ANSWER - 1))
    return int(np.where(within, sums, -np.inf).argmax())


def same_words(got: Sequence[Array], expected: Sequence[Array]) -> float:
    """Share of samples whose first masked word has the same most likely token."""
    return same_labels([_first_word(each) for each in got], [_first_word(each) for each in expected])


def _first_word(logits: Array) -> Array:
    return np.asarray(logits.reshape(MAX_MASKS, -1)[:1])


_LOGITS = partial(
    Measure,
    error_name="largest logit error",
    error=largest_difference,
    tolerance=DEFAULT_TOLERANCE,
    least=LEAST_AGREEMENT,
)
LABELS = _LOGITS(
    agreement_name="argmax",
    agreement=same_labels,
    miss="{:.1%} of the samples keep their label; at least {:.0%} must",
)
INDEPENDENT_LABELS = _LOGITS(
    agreement_name="decisions",
    agreement=same_decisions,
    miss="{:.1%} of the labels keep their side of a probability of 0.5; at least {:.0%} must",
)
ANSWERS = _LOGITS(
    agreement_name="spans",
    agreement=same_spans,
    miss="{:.1%} of the most likely spans stay the same; at least {:.0%} must",
)
MASKED_WORDS = _LOGITS(
    agreement_name="masked_words",
    agreement=same_words,
    miss="{:.1%} of the masked words keep their most likely token; at least {:.0%} must",
)
# Ranks of scores: rerankers are used for their order.
SCORES = Measure(
    error_name="largest score error",
    error=largest_difference,
    tolerance=DEFAULT_TOLERANCE,
    agreement_name="spearman",
    agreement=spearman,
    least={"fp32": 0.999, "fp16": 0.99, "bf16": 0.98, "int8": 0.95},
    miss="the scores' rank correlation with the source model's is {:.4f}; at least {:.3f} is accepted",
)
# Embeddings are used for the order of their similarities.
VECTORS = Measure(
    error_name="largest 1 - cosine",
    error=cosine_error,
    tolerance=VECTOR_TOLERANCE,
    agreement_name="similarity_spearman",
    agreement=similarity_ranks,
    least=VECTOR_AGREEMENT,
    miss="the rank correlation of similarities with the source model's is {:.4f}; at least {:.4f} is accepted",
)
SPARSE = VECTORS


def entities(labels: Sequence[str]) -> Measure:
    """The measure of token classifiers: F1 of entities against the source model's, or labels of tokens.

    Args:
        labels: Names of the labels; if empty, the share of tokens with the same label is measured instead.
    """
    if not labels:
        return replace(LABELS, miss="{:.1%} of the tokens keep their label; at least {:.0%} must")
    return replace(
        LABELS,
        agreement_name="entity_f1",
        agreement=partial(entity_f1, scheme=LabelScheme.of(labels)),
        miss="the F1 of entities against the source model's is {:.1%}; at least {:.0%} is accepted",
    )
