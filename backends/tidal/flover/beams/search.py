"""Beam search of one prompt, with the float32 operations of `transformers` in the same order."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

# Added by `transformers` to the scores of candidates that may not be chosen.
_EXCLUDED = -1.0e9


@dataclass(frozen=True, slots=True)
class BeamSettings:
    """Settings of a beam search.

    Attributes:
        beams: Number of texts searched at the same time, at least 2.
        length_penalty: Exponent of the length that divides the sum of a text's log probabilities to its score: above 0
            favours long texts, below 0 short ones.
        early_stopping: When a search with as many ended texts as beams ends. True: at once. False: when the best
            running text, at its current length, scores less than the worst ended one. "never": when no running text
            can reach a higher score.
        repetition_penalty: Factor on log probabilities of tokens that occur in the prompt or the text.
    """

    beams: int
    length_penalty: float = 1.0
    early_stopping: Literal[True, False, "never"] = False
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True)
class BeamHypothesis:
    """A text that has ended.

    Attributes:
        tokens: Token ids, including the one that ended the text.
        score: Score of the text, see `BeamSettings.length_penalty`.
    """

    tokens: tuple[int, ...]
    score: float


class BeamSearch:
    """The beams of one prompt, which all have the same number of tokens; independent of keys and values.

    Attributes:
        tokens: Token ids of each beam, best beam first; before `advance`, only those of the first beam have a meaning.
        ended: Whether the search has ended.

    Args:
        settings: Settings of the search.
        prompt: Token ids of the prompt.
        max_tokens: Largest number of tokens to generate.
        eos: Token ids that end a text.
        vocabulary: Size of the model's vocabulary.
    """

    def __init__(
        self, settings: BeamSettings, prompt: Sequence[int], max_tokens: int, eos: Collection[int], vocabulary: int
    ) -> None:
        self._settings = settings
        self._max_tokens = max_tokens
        self._eos = frozenset(eos)
        beams = settings.beams
        self.tokens: list[list[int]] = [[] for _ in range(beams)]
        self.ended = False
        # Enough continuations that `beams` remain if all others end their texts.
        self._candidates = max(2, 1 + len(self._eos)) * beams
        # Until the beams differ, only the first one counts.
        self._scores = torch.tensor([0.0] + [_EXCLUDED] * (beams - 1))  # running_beam_scores
        self._hypotheses: list[BeamHypothesis | None] = [None] * beams  # sequences, best first
        self._hypothesis_scores = torch.full((beams,), _EXCLUDED)  # beam_scores
        self._seen: torch.Tensor | None = None  # [beams, vocabulary]: tokens that occur in prompt or text
        if settings.repetition_penalty != 1:
            self._seen = torch.zeros((beams, vocabulary), dtype=torch.bool)
            self._seen[:, list(prompt)] = True

    @property
    def length(self) -> int:
        """Number of tokens generated for each beam."""
        return len(self.tokens[0])

    @property
    def best(self) -> BeamHypothesis:
        """The best text that has ended; if none has, the best running beam."""
        best = next((text for text in self._hypotheses if text is not None), None)
        return BeamHypothesis(tuple(self.tokens[0]), float(self._scores[0])) if best is None else best

    def advance(self, logits: torch.Tensor) -> list[int]:
        """Extend every beam by one token.

        Args:
            logits: float32 [beams, vocabulary], in the order of the beams; [1, vocabulary] for the first token.

        Returns:
            The previous beam that each beam continues.

        Raises:
            ArithmeticError: Logits are NaN or infinite.
        """
        settings, vocabulary = self._settings, logits.shape[-1]
        log_probs = torch.log_softmax(logits, dim=-1).expand(settings.beams, -1)
        if self._seen is not None:
            penalty = settings.repetition_penalty
            penalised = torch.where(log_probs < 0, log_probs * penalty, log_probs / penalty)
            log_probs = torch.where(self._seen, penalised, log_probs)
        sums = (log_probs + self._scores[:, None]).reshape(-1)
        scores, candidates = torch.topk(sums, self._candidates)
        if not math.isfinite(float(scores[0])):
            raise ArithmeticError("logits are NaN or infinite")
        extensions = [divmod(index, vocabulary) for index in candidates.tolist()]
        full = self.length + 1 >= self._max_tokens
        ends = [full or token in self._eos for _, token in extensions]

        texts = [
            (*self.tokens[parent], token) if end else None
            for (parent, token), end in zip(extensions, ends, strict=True)
        ]
        self._keep(texts, scores)

        running = scores + torch.tensor(ends).float() * _EXCLUDED
        running, chosen = torch.topk(running, settings.beams)
        self._scores = running
        running_extensions = [extensions[index] for index in chosen.tolist()]
        self.tokens = [[*self.tokens[parent], token] for parent, token in running_extensions]
        parents = [parent for parent, _ in running_extensions]
        if self._seen is not None:
            self._seen = self._seen[parents]
            self._seen[range(settings.beams), [token for _, token in running_extensions]] = True
        self.ended = all(ends) or not self._can_improve()
        return parents

    def _keep(self, texts: Sequence[tuple[int, ...] | None], scores: torch.Tensor) -> None:
        """Keep the candidates that have ended and are among the best texts."""
        settings = self._settings
        scores = scores / (self.length + 1) ** settings.length_penalty
        # Candidates beyond `beams` only serve to continue if these end.
        counts = [text is not None and rank < settings.beams for rank, text in enumerate(texts)]
        scores = scores + (~torch.tensor(counts)).float() * _EXCLUDED
        merged = torch.cat((self._hypothesis_scores, scores))
        self._hypothesis_scores, chosen = torch.topk(merged, settings.beams)
        known = [*self._hypotheses, *(text if count else None for text, count in zip(texts, counts, strict=True))]
        self._hypotheses = []
        for index in chosen.tolist():
            text = known[index]
            self._hypotheses.append(BeamHypothesis(text, float(merged[index])) if isinstance(text, tuple) else text)

    def _can_improve(self) -> bool:
        """Whether a running text can still become one of the best."""
        settings = self._settings
        if any(text is None for text in self._hypotheses):
            return True
        if settings.early_stopping is True:
            return False
        at_max_length = settings.early_stopping == "never" and settings.length_penalty > 0
        length = self._max_tokens if at_max_length else self.length
        best = self._scores[0] / length**settings.length_penalty
        return bool(best > self._hypothesis_scores.min())
