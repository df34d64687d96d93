"""Small models for tasks about tokens, and what transformers answers with them."""

from __future__ import annotations

import random
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from testing.token_models import make_tiny_head
from tidal.encoder_tasks.spans import Window, best_answers, word_bounds

MAX_LENGTH = 64
STRIDE = 8
LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
# A scheme with holes: tags that lack B-, I- or both.
HOLES = ("I-PER", "B-LOC", "O", "MISC", "E-ORG")
_TEXT = (
    "please book a flight to 東京 for José ! e\u0301te\u0301 🎉 👩\u200d👧 https://t.co/a?b=ü @user city ( good ) 3.14"
)
WORDS = _TEXT.split(" ")


def make_texts(count: int, seed: int, longest: int = 12) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, longest))) for _ in range(count)]


class Sources:
    """Folders of the unmodified models, and what transformers does with them."""

    def __init__(self, folder: Path) -> None:
        self.tokens = make_tiny_head(folder / "tokens", "TokenClassification", labels=LABELS)
        self.holes = make_tiny_head(folder / "holes", "TokenClassification", labels=HOLES, seed=4)
        self.questions = make_tiny_head(folder / "questions", "QuestionAnswering", seed=1)
        self.masks = make_tiny_head(folder / "masks", "MaskedLM", seed=2)
        self.vectors = make_tiny_head(folder / "vectors", "", seed=3)

    @cached_property
    def pipeline(self) -> Any:
        from transformers import pipeline

        return pipeline("token-classification", model=str(self.tokens))

    @cached_property
    def pipeline_with_holes(self) -> Any:
        from transformers import pipeline

        return pipeline("token-classification", model=str(self.holes))

    def pipeline_of(self, model: str) -> Any:
        return self.pipeline_with_holes if model == "ner_parts" else self.pipeline

    @cached_property
    def fill(self) -> Any:
        from transformers import pipeline

        return pipeline("fill-mask", model=str(self.masks))

    @cached_property
    def reader(self) -> tuple[Any, Any]:
        from transformers import AutoModelForQuestionAnswering, AutoTokenizer

        model = AutoModelForQuestionAnswering.from_pretrained(self.questions).eval()
        return AutoTokenizer.from_pretrained(self.questions), model

    def answers(
        self, question: str, context: str, *, top_k: int = 1, stride: int | None = None, **limits: Any
    ) -> list[Any]:
        import torch

        tokenizer, model = self.reader
        cut = {} if stride is None else {"return_overflowing_tokens": True, "stride": stride}
        encoded = tokenizer(
            question, context, truncation="only_second", max_length=MAX_LENGTH, return_offsets_mapping=True, **cut
        )
        windows = []
        for number, one in enumerate(encoded.encodings):
            inputs = {"input_ids": one.ids, "attention_mask": one.attention_mask, "token_type_ids": one.type_ids}
            with torch.inference_mode():
                found = model(**{name: torch.tensor([values]) for name, values in inputs.items()})
            inside = np.array([part == 1 for part in encoded.sequence_ids(number)])
            words = np.array([-1 if word is None else word for word in encoded.word_ids(number)])
            bounds = word_bounds(np.array(one.offsets), np.where(inside, words, -1))
            windows.append(Window(found.start_logits[0].numpy(), found.end_logits[0].numpy(), inside, *bounds))
        return best_answers(windows, context, top_k=top_k, **limits)
