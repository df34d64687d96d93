"""Loads the source model from Hugging Face's format, and defines the graph that is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tidal.errors import InvalidArgument
from tidal_builders.arlo.spec import ArloSpec
from tidal_builders.quiet import quiet_transformers
from tidal_builders.samples import Row


@dataclass(frozen=True, slots=True)
class Source:
    """An unmodified source model in float32 on the CPU.

    Attributes:
        folder: Folder that it was loaded from.
        model: Model of `transformers`.
        tokenizer: Its fast tokenizer.
        max_length: Maximum input length in tokens.
        labels: Names of the labels.
    """

    folder: Path
    model: Any
    tokenizer: Any
    max_length: int
    labels: tuple[str, ...]

    @property
    def type_ids(self) -> bool:
        """Whether the model has an input `token_type_ids`."""
        return "token_type_ids" in self.tokenizer.model_input_names

    def outputs(self, row: Row, names: Sequence[str]) -> dict[str, npt.NDArray[np.float32]]:
        """Run the source model on one query.

        Args:
            row: int64 arrays of shape [length] by input name.
            names: Names of the outputs: `logits`, and optionally `attention_received`.

        Returns:
            Arrays without a batch axis by name.
        """
        inputs = {name: torch.from_numpy(values)[None] for name, values in row.items()}
        with torch.inference_mode():
            outputs = {"logits": self.model(**inputs).logits[0].numpy()}
            if "attention_received" in names:
                attentions = _eager(self.folder, self.model)(**inputs, output_attentions=True).attentions
                received = torch.stack(attentions).sum(dim=(0, 1, 2, 3))
                outputs["attention_received"] = received.numpy()
        return outputs


class Exported(torch.nn.Module):
    """The graph that is compiled, from int64 inputs of shape [batch, length] to named float32 outputs.

    The output `attention_received`, of shape [batch, length], is the attention that each token receives, summed over
    layers, heads and the query rows that are not padding (Tabi, Section 4.2).

    Args:
        source: The source model.
        outputs: Names of the outputs.
    """

    def __init__(self, source: Source, outputs: Sequence[str]) -> None:
        super().__init__()
        self.attention = "attention_received" in outputs
        self.model = _eager(source.folder, source.model) if self.attention else source.model

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """Run the model on a padded batch."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        if not self.attention:
            return {"logits": self.model(**inputs).logits}
        answer = self.model(**inputs, output_attentions=True)
        kept = attention_mask[:, None, :, None].to(answer.logits.dtype)
        received = [(weights * kept).sum(dim=(1, 2)) for weights in answer.attentions]
        return {"logits": answer.logits, "attention_received": torch.stack(received).sum(dim=0)}


def load_source(folder: Path, spec: ArloSpec) -> Source:
    """Load a classifier and its tokenizer.

    Args:
        folder: Folder of the source model.
        spec: Spec of the classifier.

    Raises:
        InvalidArgument: The folder contains no sequence classifier, no fast tokenizer, or weights that are pickled or
            belong to another model.
    """
    if not any(folder.glob("*.safetensors")):
        raise InvalidArgument(
            f"field 'model': {folder} has no weights as safetensors; pickled weights (pytorch_model.bin) are not read, "
            "because they can run code: save the model with `save_pretrained(folder, safe_serialization=True)`"
        )
    with quiet_transformers():
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True)
            model, info = AutoModelForSequenceClassification.from_pretrained(
                folder, dtype=torch.float32, output_loading_info=True, use_safetensors=True
            )
        except (OSError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())[:300]
            raise InvalidArgument(f"field 'model': {folder} contains no sequence classifier: {reason}") from None
    if missing := sorted(info["missing_keys"]):
        raise InvalidArgument(
            f"field 'model': {folder} has no weights for {', '.join(missing[:4])}: it was not trained as a classifier"
        )
    if not getattr(tokenizer, "is_fast", False):
        raise InvalidArgument(f"field 'model': the tokenizer of {folder} has no fast version (tokenizer.json)")
    classes = int(model.config.num_labels)
    labels = spec.labels or tuple(str(model.config.id2label[number]) for number in range(classes))
    if len(labels) != classes:
        raise InvalidArgument(
            f"field 'labels': expected {classes} labels, one per class of the model, got {len(labels)}"
        )
    return Source(folder, model.eval(), tokenizer, _max_length(model, tokenizer), labels)


def _max_length(model: Any, tokenizer: Any) -> int:
    """Maximum input length in tokens that the model's positions and its tokenizer allow."""
    limit = int(min(tokenizer.model_max_length, model.config.max_position_embeddings))
    for name, layer in model.named_modules():
        # RoBERTa and models derived from it count positions from after the padding index.
        if name.endswith("position_embeddings") and getattr(layer, "padding_idx", None) is not None:
            limit = min(limit, layer.num_embeddings - layer.padding_idx - 1)
    return limit


_EAGER: dict[Path, Any] = {}


def _eager(folder: Path, model: Any) -> Any:
    """The same model with eager attention, the only implementation that returns attention weights."""
    if folder not in _EAGER:
        with quiet_transformers():
            eager = type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        _EAGER[folder] = eager.eval()
    return _EAGER[folder]
