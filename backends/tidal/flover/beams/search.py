"""Beam search as `transformers` makes it, in the same order of the same float32 operations, of one prompt."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

# What `transformers` takes off the score of what may not be chosen.
_OUT = -1.0e9


@dataclass(frozen=True, slots=True)
class BeamSettings:
    """How the beams of a prompt are searched.

    Attributes:
        beams: texts that are followed at the same time, at least 2.
        length_penalty: a text's score is the sum of its tokens' log probabilities, divided by their number to the power
            of this: above 0 favours long texts, below 0 short ones.
        early_stopping: when a search with as many ended texts as beams ends: True: at once; False: when the best
            running text, as long as it is, scores less than the worst ended one; "never": when no running text can
            come to score more.
        repetition_penalty: what log probabilities of tokens that stand in prompt or text are multiplied by.
    """

    beams: int
    length_penalty: float = 1.0
    early_stopping: Literal[True, False, "never"] = False
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True)
class Text:
    """A text that has ended: its tokens, the one that ended it included."""

    tokens: tuple[int, ...]
    score: float


class BeamSearch:
    """The beams of one prompt, which all have the same number of tokens. Holds no keys and values.

    Attributes:
        tokens: of each beam, best beam first; those of beams beyond the first mean nothing before `advance`.
        ended: whether no more tokens are wanted.

    Args:
        settings: how to search.
        prompt: token ids.
        most_tokens: to generate at most.
        eos: tokens that end a text.
        vocabulary: tokens of the model.
    """

    def __init__(
        self, settings: BeamSettings, prompt: Sequence[int], most_tokens: int, eos: Collection[int], vocabulary: int
    ) -> None:
        self._settings = settings
        self._most = most_tokens
        self._eos = frozenset(eos)
        beams = settings.beams
        self.tokens: list[list[int]] = [[] for _ in range(beams)]
        self.ended = False
        # So many of the likeliest continuations that some stay if all others end their texts.
        self._candidates = max(2, 1 + len(self._eos)) * beams
        # Only the first beam counts until they differ.
        self._scores = torch.tensor([0.0] + [_OUT] * (beams - 1))  # running_beam_scores
        self._texts: list[Text | None] = [None] * beams  # sequences, best first
        self._text_scores = torch.full((beams,), _OUT)  # beam_scores
        self._seen: torch.Tensor | None = None  # [beams, vocabulary]: tokens that stand in prompt or text
        if settings.repetition_penalty != 1:
            self._seen = torch.zeros((beams, vocabulary), dtype=torch.bool)
            self._seen[:, list(prompt)] = True

    @property
    def length(self) -> int:
        """Tokens of each beam."""
        return len(self.tokens[0])

    @property
    def best(self) -> Text:
        """The best text that has ended; if none has, the best beam as it is."""
        found = next((text for text in self._texts if text is not None), None)
        return Text(tuple(self.tokens[0]), float(self._scores[0])) if found is None else found

    def advance(self, logits: torch.Tensor) -> list[int]:
        """Let every beam go on by a token.

        Args:
            logits: float32 [beams, vocabulary], in the order of the beams; [1, vocabulary] for the first token.

        Returns:
            For each beam the one of before that it goes on from.

        Raises:
            ArithmeticError: logits are no numbers.
        """
        settings, vocabulary = self._settings, logits.shape[-1]
        chances = torch.log_softmax(logits, dim=-1).expand(settings.beams, -1)
        if self._seen is not None:
            penalty = settings.repetition_penalty
            penalised = torch.where(chances < 0, chances * penalty, chances / penalty)
            chances = torch.where(self._seen, penalised, chances)
        sums = (chances + self._scores[:, None]).reshape(-1)
        scores, places = torch.topk(sums, self._candidates)
        if not math.isfinite(float(scores[0])):
            raise ArithmeticError("logits are no numbers")
        found = [divmod(place, vocabulary) for place in places.tolist()]
        full = self.length + 1 >= self._most
        ends = [full or token in self._eos for _, token in found]

        texts = [
            (*self.tokens[source], token) if end else None for (source, token), end in zip(found, ends, strict=True)
        ]
        self._keep(texts, scores)

        running = scores + torch.tensor(ends).float() * _OUT
        running, chosen = torch.topk(running, settings.beams)
        self._scores = running
        going = [found[place] for place in chosen.tolist()]
        self.tokens = [[*self.tokens[source], token] for source, token in going]
        sources = [source for source, _ in going]
        if self._seen is not None:
            self._seen = self._seen[sources]
            self._seen[range(settings.beams), [token for _, token in going]] = True
        self.ended = all(ends) or not self._can_improve()
        return sources

    def _keep(self, texts: Sequence[tuple[int, ...] | None], scores: torch.Tensor) -> None:
        """Take over those texts of the candidates that have ended and are among the best."""
        settings = self._settings
        scores = scores / (self.length + 1) ** settings.length_penalty
        # The other candidates are only there to go on if these end.
        counts = [text is not None and place < settings.beams for place, text in enumerate(texts)]
        scores = scores + (~torch.tensor(counts)).float() * _OUT
        merged = torch.cat((self._text_scores, scores))
        self._text_scores, chosen = torch.topk(merged, settings.beams)
        known = [*self._texts, *(text if count else None for text, count in zip(texts, counts, strict=True))]
        self._texts = []
        for place in chosen.tolist():
            text = known[place]
            self._texts.append(Text(text, float(merged[place])) if isinstance(text, tuple) else text)

    def _can_improve(self) -> bool:
        """Whether a running text may come to be among the best."""
        settings = self._settings
        if any(text is None for text in self._texts):
            return True
        if settings.early_stopping is True:
            return False
        to_the_end = settings.early_stopping == "never" and settings.length_penalty > 0
        length = self._most if to_the_end else self.length
        best = self._scores[0] / length**settings.length_penalty
        return bool(best > self._text_scores.min())
