"""Tiny models with random weights that label tokens, answer questions or predict masked words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from testing.models import make_tiny_classifier


def make_tiny_head(
    folder: Path, head: str, *, labels: Sequence[str] = ("no", "yes"), max_position: int = 64, seed: int = 0
) -> Path:
    """Write a random BERT with another head than a classifier's, and its tokenizer; returns `folder`.

    Args:
        folder: Folder to write.
        head: End of the class's name after `BertFor`, for example `TokenClassification`; "" for none.
        labels: Names of the labels, if the head has any.
        max_position: Maximum length in tokens.
        seed: Seed of the weights.
    """
    import torch
    import transformers

    make_tiny_classifier(folder, layers=1, hidden=32, labels=labels, max_position=max_position, seed=seed)
    config = transformers.AutoConfig.from_pretrained(folder)
    config.architectures = None
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = getattr(transformers, f"BertFor{head}" if head else "BertModel")(config)
    model.eval().save_pretrained(folder)
    return folder
