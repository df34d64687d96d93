"""The unmodified models that tasks are made from, as their authors run them: the references for imports."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from transformers import AutoTokenizer

from tidal.errors import InvalidArgument, Unsupported
from tidal.pets.heads import POOLED
from tidal.pets.terms import FloatArray
from tidal_builders.encoder_tasks.entries import BUILD_TASKS
from tidal_builders.encoder_tasks.masked_samples import MAX_MASKS
from tidal_builders.foreign.files import check_checkpoint
from tidal_builders.foreign.peft import PEFT_PREFIX, WEIGHTS_FILE
from tidal_builders.quiet import quiet_transformers

_BATCH = 16
# Largest number of tokens per text; positions that RoBERTa does not use.
_MAX_TOKENS, _SPARE = 512, 2
# Computes the values that answers are made of, from a model's outputs and the attention mask.
Tail = Callable[[Any, torch.Tensor], torch.Tensor]
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "sentencepiece.bpe.model")


@dataclass(frozen=True, slots=True)
class SourceModel:
    """A model in float32 on the CPU, in evaluation mode, with its own tokenizer.

    Attributes:
        title: Name in messages.
        model: Model of transformers, peft or torch, called with a batch.
        tokenizer: Tokenizer of transformers.
        longest: Number of tokens at which texts are truncated.
        tail: Computes what answers are made of, from the model's outputs and the attention mask: [rows, ...], or
            [rows, tokens, ...].
        per_token: Whether it computes values for every token.
        mask_id: Id of the token for masked words, if the values are scores for these: those after a text's are 0.
    """

    title: str
    model: Any
    tokenizer: Any
    longest: int
    tail: Tail
    per_token: bool = False
    mask_id: int | None = None

    def answers(self, texts: Sequence[tuple[str, ...]]) -> list[FloatArray]:
        """Compute what answers are made of.

        Args:
            texts: Texts of one string each, or of two; longer ones are truncated.

        Returns:
            For each text float32 [outputs], or [tokens, outputs].
        """
        found: list[FloatArray] = []
        for _, alike in itertools.groupby(texts, key=len):
            rows = list(alike)
            for begin in range(0, len(rows), _BATCH):
                columns = list(zip(*rows[begin : begin + _BATCH], strict=True))
                inputs = self.tokenizer(
                    *map(list, columns), padding=True, truncation=True, max_length=self.longest, return_tensors="pt"
                )
                mask = inputs["attention_mask"]
                with torch.inference_mode():
                    values = self.tail(self.model(**inputs), mask).float().numpy()
                if self.mask_id is not None:
                    for row, count in zip(values, (inputs["input_ids"] == self.mask_id).sum(1).tolist(), strict=True):
                        row.reshape(MAX_MASKS, -1)[count:] = 0
                lengths = mask.sum(1).tolist()
                found += [row[:length] if self.per_token else row for row, length in zip(values, lengths, strict=True)]
        return found


def logits_of(outputs: Any, _mask: torch.Tensor) -> torch.Tensor:
    """The logits of a model's outputs; of spans those of starts and ends, [rows, tokens, 2]."""
    logits: torch.Tensor | None = getattr(outputs, "logits", None)
    if logits is None:
        logits = torch.stack([outputs.start_logits, outputs.end_logits], -1)
    return logits


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
    # RoBERTa counts positions from after the padding token.
    return int(longest - _SPARE if model.config.model_type in ("roberta", "xlm-roberta") else longest)


def load_source(folder: Path, task: str) -> Any:
    """Load the model of a folder in Hugging Face's format, in float32 on the CPU.

    Args:
        folder: Folder of the checkpoint, with weights as safetensors.
        task: Task of encoders that the model is for.

    Raises:
        InvalidArgument: The folder holds no such model, or a file of it is beyond a limit.
    """
    if not any(folder.glob("*.safetensors")):
        raise InvalidArgument(
            f"{folder} has no weights as safetensors, and pickled ones (pytorch_model.bin) are not read, for they can "
            "run code: save the model with a current transformers' `save_pretrained(folder)`"
        )
    check_checkpoint(folder)
    try:
        with quiet_transformers():
            model, info = _model_class(task).from_pretrained(
                folder, dtype=torch.float32, output_loading_info=True, use_safetensors=True, local_files_only=True
            )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InvalidArgument(f"{folder} has no model for {task}: {reason}") from None
    if missing := _missing(info, task):
        raise InvalidArgument(f"{folder} has no weights for {', '.join(missing[:4])}: it is not a fine-tuned model")
    return model.eval()


def _model_class(task: str) -> Any:
    return getattr(transformers, BUILD_TASKS[task].auto_class)


def _missing(info: Mapping[str, Any], task: str) -> list[str]:
    """Names of missing weights; a pooler may be missing that the task does not read."""
    return sorted(name for name in info["missing_keys"] if task in POOLED or not name.startswith("pooler."))


def peft_model(folder: Path, base: Path, task: str, outputs: int) -> Any:
    """Load a LoRA on its base by an unmodified peft.

    Args:
        folder: Folder that peft saved.
        base: Folder of the base.
        task: Task of encoders that the adapter is for.
        outputs: Number of outputs of the adapter's head; 0: it has none.

    Raises:
        Unsupported: The base's folder lacks weights that training initialised randomly and peft did not save.
    """
    from peft import PeftModel

    sizes: dict[str, Any] = {"num_labels": outputs, "ignore_mismatched_sizes": True} if outputs else {}
    with quiet_transformers(), warnings.catch_warnings(action="ignore"):
        model, info = _model_class(task).from_pretrained(
            base, dtype=torch.float32, output_loading_info=True, use_safetensors=True, local_files_only=True, **sizes
        )
        merged: Any = PeftModel.from_pretrained(model, str(folder)).eval()
    with safe_open(folder / WEIGHTS_FILE, "pt") as file:
        saved = {name.removeprefix(PEFT_PREFIX) for name in file.keys()}  # noqa: SIM118 - no mapping
    if lost := sorted(set(_missing(info, task)) - saved):
        raise Unsupported(
            f"{base} has no weights for {', '.join(lost[:4])}: training began with random ones, and peft did not save "
            "them, so the trained model cannot be restored; train with modules_to_save that names them"
        )
    return merged
