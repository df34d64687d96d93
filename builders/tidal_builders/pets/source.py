"""A base as Hugging Face loads it, with its fast tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer

from tidal.errors import InvalidArgument
from tidal_builders.quiet import quiet_transformers

_POOLER = "pooler."


@dataclass(frozen=True, slots=True)
class BaseSource:
    """An unmodified encoder in float32 on the CPU.

    Attributes:
        folder: Folder that it was loaded from.
        model: Model of transformers, in evaluation mode.
        tokenizer: Fast tokenizer of the model.
        max_length: Longest input in tokens.
        zeroed: Names of the weights that the folder lacks, which are 0; see `load_base`.
    """

    folder: Path
    model: Any
    tokenizer: Any
    max_length: int
    zeroed: tuple[str, ...]

    @property
    def type_ids(self) -> bool:
        """Whether the model reads token_type_ids."""
        return "token_type_ids" in self.tokenizer.model_input_names


def load_base(folder: Path) -> BaseSource:
    """Load an encoder and its tokenizer.

    Folders of encoders that were only pre-trained may lack the pooler, which `transformers` then fills with random
    numbers. Here it is 0: every task of such a base has a pooler of its own, as a difference from 0.

    Args:
        folder: Folder in Hugging Face's format.

    Raises:
        InvalidArgument: The folder has no encoder, no fast tokenizer, or weights that are pickled or of another model.
    """
    if not any(folder.glob("*.safetensors")):
        raise InvalidArgument(
            f"field 'model': {folder} has no weights as safetensors, and pickled ones (pytorch_model.bin) are not "
            "read, for they can run code: save the model with `save_pretrained(folder, safe_serialization=True)`"
        )
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True)
        model, zeroed = load_encoder(folder)
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InvalidArgument(f"field 'model': {folder} has no encoder: {reason}") from None
    except InvalidArgument as error:
        raise InvalidArgument(f"field 'model': {error}") from None
    if not getattr(tokenizer, "is_fast", False):
        raise InvalidArgument(f"field 'model': the tokenizer of {folder} has no fast version (tokenizer.json)")
    largest, vocabulary = max(tokenizer.get_vocab().values()), model.get_input_embeddings().num_embeddings
    if largest >= vocabulary:
        raise InvalidArgument(
            f"field 'model': the tokenizer of {folder} has the id {largest}, the model ids below {vocabulary}"
        )
    return BaseSource(folder, model, tokenizer, _max_length(model, tokenizer), zeroed)


def load_encoder(folder: Path) -> tuple[Any, tuple[str, ...]]:
    """Load an encoder alone, in float32 on the CPU; a pooler that the folder lacks is 0.

    Args:
        folder: Folder in Hugging Face's format.

    Returns:
        The model in evaluation mode, and the names of the weights that are 0.

    Raises:
        InvalidArgument: Weights other than the pooler's are missing.
        OSError, ValueError, KeyError: As transformers raises them for a folder that it cannot load.
    """
    with quiet_transformers():
        model, info = AutoModel.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True, use_safetensors=True
        )
    missing = sorted(info["missing_keys"])
    if lost := [name for name in missing if not name.startswith(_POOLER)]:
        raise InvalidArgument(f"{folder} has no weights for {', '.join(lost[:4])}")
    with torch.no_grad():
        for name in missing:
            model.get_parameter(name).zero_()
    return model.eval(), tuple(missing)


def _max_length(model: Any, tokenizer: Any) -> int:
    """Longest input: the positions that the model has and its tokenizer permits."""
    limit = int(min(tokenizer.model_max_length, model.config.max_position_embeddings))
    for name, layer in model.named_modules():
        # RoBERTa counts positions from after the padding index.
        if name.endswith("position_embeddings") and getattr(layer, "padding_idx", None) is not None:
            limit = min(limit, layer.num_embeddings - layer.padding_idx - 1)
    return limit
