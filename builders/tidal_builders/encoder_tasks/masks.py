"""Models that predict masked words: their engines return the logits of the masked tokens alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from tidal.errors import InvalidArgument
from tidal_builders.encoder_tasks.masked_samples import MAX_MASKS
from tidal_builders.encoder_tasks.prepared import Prepared, PrepareOptions


class MaskedLogits(torch.nn.Module):
    """Logits of the masked tokens, [rows, MAX_MASKS * vocabulary]."""

    def forward(self, outputs: Any, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the logits, of which those after a row's masked tokens have no meaning."""
        return torch.flatten(outputs.logits, 1)


def prepare_masks(folder: Path, model: Any, options: PrepareOptions) -> Prepared:
    """Prepare a masked language model: its head gets the vectors of the masked tokens alone.

    The head of a vocabulary of 30,000 tokens costs as much as the layers of a small model, and its logits for every
    token of a batch would take gigabytes.

    Raises:
        InvalidArgument: The tokenizer has no token for masked words.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, use_fast=True)
    if tokenizer.mask_token_id is None:
        raise InvalidArgument(
            f"field 'model': the tokenizer of {folder} has no mask token; fill-mask requires one: set mask_token in "
            "its tokenizer_config.json"
        )
    mask_id = int(tokenizer.mask_token_id)

    def select(_module: Any, args: Any, kwargs: Mapping[str, Any], output: Any) -> Any:
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        output["last_hidden_state"] = masked_vectors(output["last_hidden_state"], ids == mask_id)
        return output

    model.base_model.register_forward_hook(select, with_kwargs=True)
    settings = {"mask_id": mask_id, "mask": tokenizer.mask_token, "max_masks": MAX_MASKS}
    width = MAX_MASKS * int(model.get_output_embeddings().out_features)
    return Prepared(MaskedLogits(), width, settings=settings, mask_id=mask_id)


def masked_vectors(vectors: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
    """Return the vectors of the first masked tokens, [rows, MAX_MASKS, width]; zeros after a row's.

    A product with a matrix of zeros and ones, which every engine supports for any length.

    Args:
        vectors: Vectors of all tokens, [rows, length, width].
        masked: Whether a token is masked, [rows, length].
    """
    numbers = torch.cumsum(masked.to(torch.int64), dim=1) - 1
    slots = torch.arange(MAX_MASKS)[None, :, None]
    chosen = (numbers[:, None, :] == slots) & masked[:, None, :]
    return torch.matmul(chosen.to(vectors.dtype), vectors)
