"""The unmodified models that tasks are made from, as their authors run them: the references for imports."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tidal.errors import InvalidArgument, Unsupported
from tidal.pets.terms import FloatArray
from tidal_builders.foreign.files import check_checkpoint
from tidal_builders.foreign.peft import PEFT_PREFIX, WEIGHTS_FILE
from tidal_builders.quiet import quiet_transformers

_BATCH = 16
# Largest number of tokens per text; positions that RoBERTa does not use.
_MAX_TOKENS, _SPARE = 512, 2
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "sentencepiece.bpe.model")


@dataclass(frozen=True, slots=True)
class SourceModel:
    """A classifier in float32 on the CPU, in evaluation mode, with its own tokenizer.

    Attributes:
        title: Name in messages.
        model: Model of transformers, peft or torch: called with a batch, it returns an object with `logits`
            [rows, classes].
        tokenizer: Tokenizer of transformers.
        longest: Number of tokens at which texts are truncated.
    """

    title: str
    model: Any
    tokenizer: Any
    longest: int

    def logits(self, texts: Sequence[tuple[str, ...]]) -> FloatArray:
        """Compute the logits of texts.

        Args:
            texts: Texts of one string each, or of two; longer ones are truncated.

        Returns:
            float32 [texts, classes].
        """
        found = []
        for _, alike in itertools.groupby(texts, key=len):
            rows = list(alike)
            for begin in range(0, len(rows), _BATCH):
                columns = list(zip(*rows[begin : begin + _BATCH], strict=True))
                inputs = self.tokenizer(
                    *map(list, columns), padding=True, truncation=True, max_length=self.longest, return_tensors="pt"
                )
                with torch.inference_mode():
                    found.append(self.model(**inputs).logits.float().numpy())
        return np.asarray(np.concatenate(found), np.float32)


def source_tokenizer(*folders: Path | None) -> Any:
    """Load the tokenizer of the first folder that has one.

    Args:
        folders: Folders to try; None is skipped.

    Raises:
        InvalidArgument: No folder has a tokenizer.
    """
    for folder in folders:
        if folder is not None and any((folder / name).is_file() for name in _TOKENIZER_FILES):
            with quiet_transformers():
                return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    named = " and ".join(str(folder) for folder in folders if folder is not None)
    raise InvalidArgument(f"there is no tokenizer in {named}: save the source model's tokenizer there")


def longest_input(model: Any, tokenizer: Any) -> int:
    """Largest number of tokens that a model and its tokenizer accept."""
    longest = min(tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", _MAX_TOKENS))
    # RoBERTa counts positions from behind the padding token.
    return int(longest - _SPARE if model.config.model_type in ("roberta", "xlm-roberta") else longest)


def load_classifier(folder: Path) -> Any:
    """Load the sequence classifier of a folder in Hugging Face's format, in float32 on the CPU.

    Args:
        folder: Folder of the checkpoint, with weights as safetensors.

    Raises:
        InvalidArgument: The folder holds no such classifier, or a file of it is beyond a limit.
    """
    if not any(folder.glob("*.safetensors")):
        raise InvalidArgument(
            f"{folder} has no weights as safetensors, and pickled ones (pytorch_model.bin) are not read, for they can "
            "run code: save the model with a current transformers' `save_pretrained(folder)`"
        )
    check_checkpoint(folder)
    try:
        with quiet_transformers():
            model, info = AutoModelForSequenceClassification.from_pretrained(
                folder, dtype=torch.float32, output_loading_info=True, use_safetensors=True, local_files_only=True
            )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InvalidArgument(f"{folder} has no sequence classifier: {reason}") from None
    if missing := sorted(info["missing_keys"]):
        raise InvalidArgument(
            f"{folder} has no weights for {', '.join(missing[:4])}: it is not a fine-tuned classifier"
        )
    return model.eval()


def peft_model(folder: Path, base: Path, classes: int) -> Any:
    """Load a LoRA on its base by an unmodified peft.

    Args:
        folder: Folder that peft saved.
        base: Folder of the base.
        classes: Number of classes of the adapter's classifier.

    Raises:
        Unsupported: The base's folder lacks weights that training initialised randomly and peft did not save.
    """
    from peft import PeftModel

    with quiet_transformers(), warnings.catch_warnings(action="ignore"):
        model, info = AutoModelForSequenceClassification.from_pretrained(
            base, dtype=torch.float32, output_loading_info=True, use_safetensors=True, num_labels=classes,
            ignore_mismatched_sizes=True, local_files_only=True,
        )  # fmt: skip
        merged: Any = PeftModel.from_pretrained(model, str(folder)).eval()
    with safe_open(folder / WEIGHTS_FILE, "pt") as file:
        saved = {name.removeprefix(PEFT_PREFIX) for name in file.keys()}  # noqa: SIM118 - no mapping
    if lost := sorted(set(info["missing_keys"]) - saved):
        raise Unsupported(
            f"{base} has no weights for {', '.join(lost[:4])}: training began with random ones, and peft did not save "
            "them, so the trained model cannot be restored; train with modules_to_save that names them"
        )
    return merged
