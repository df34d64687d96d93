"""Tasks that answer with places in a text: labels of tokens, and the begin and end of answers to questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from tidal.encoder_tasks.entities import LabelScheme
from tidal.errors import InvalidArgument
from tidal_builders.encoder_tasks.logits import Logits, prepare_labels
from tidal_builders.encoder_tasks.prepared import Prepared, PrepareOptions


class BeginAndEnd(torch.nn.Module):
    """Logits of the first and of the last token of an answer, [rows, length, 2]."""

    def forward(self, outputs: Any, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return torch.stack([outputs.start_logits, outputs.end_logits], dim=-1)


def prepare_token_labels(folder: Path, model: Any, options: PrepareOptions) -> Prepared:
    """Prepare a model with one output per label for each token.

    Raises:
        InvalidArgument: The spec names another number of labels, or a label has no name.
    """
    prepared = prepare_labels(folder, model, options)
    LabelScheme.of(prepared.labels)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, use_fast=True)
    prefix = getattr(tokenizer.backend_tokenizer.model, "continuing_subword_prefix", None)
    settings = {"word_pieces": bool(prefix), "unknown_id": tokenizer.unk_token_id}
    return Prepared(Logits(), prepared.width, prepared.labels, settings)


def prepare_questions(folder: Path, model: Any, options: PrepareOptions) -> Prepared:
    """Prepare a model that finds the begin and the end of an answer.

    Raises:
        InvalidArgument: The model reads the context before the question.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, use_fast=True)
    if tokenizer.padding_side != "right":
        raise InvalidArgument(
            f"field 'model': the tokenizer of {folder} pads on the left, as those of models that read the context "
            "before the question; question-answering serves models that read the question first"
        )
    settings = {
        "max_answer_tokens": options.max_answer_tokens,
        "impossible_answers": options.impossible_answers,
    }
    return Prepared(BeginAndEnd(), 2, settings=settings)
