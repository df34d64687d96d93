"""The source model as Hugging Face loads it, and the graph of it that is compiled."""

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
    """An unmodified source model, in float32 on the CPU, with its fast tokenizer."""

    folder: Path
    model: Any
    tokenizer: Any
    max_length: int
    labels: tuple[str, ...]

    @property
    def type_ids(self) -> bool:
        """Whether the model reads token_type_ids."""
        return "token_type_ids" in self.tokenizer.model_input_names

    def outputs(self, row: Row, wanted: Sequence[str]) -> dict[str, npt.NDArray[np.float32]]:
        """What the source model answers to one query: arrays without a batch axis.

        Args:
            row: int64 arrays of shape [length] by input name.
            wanted: `logits` and, if asked for, `attention_received`.
        """
        inputs = {name: torch.from_numpy(values)[None] for name, values in row.items()}
        with torch.inference_mode():
            answer = {"logits": self.model(**inputs).logits[0].numpy()}
            if "attention_received" in wanted:
                attentions = _eager(self.folder, self.model)(**inputs, output_attentions=True).attentions
                received = torch.stack(attentions).sum(dim=(0, 1, 2, 3))
                answer["attention_received"] = received.numpy()
        return answer


class Exported(torch.nn.Module):
    """The graph that is compiled: int64 inputs [batch, length] in, named float32 outputs out.

    `attention_received` [batch, length] is the attention that each token receives, summed over layers, heads and
    the query rows that are not padding (Tabi §4.2).
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

    Raises:
        InvalidArgument: the folder holds no sequence classifier, no fast tokenizer, or weights that are pickled or
            of another model.
    """
    if not any(folder.glob("*.safetensors")):
        raise InvalidArgument(
            f"field 'model': {folder} has no weights as safetensors, and pickled ones (pytorch_model.bin) are not "
            "read, for they can run code: save the model with `save_pretrained(folder, safe_serialization=True)`"
        )
    with quiet_transformers():
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True)
            model, info = AutoModelForSequenceClassification.from_pretrained(
                folder, dtype=torch.float32, output_loading_info=True, use_safetensors=True
            )
        except (OSError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())[:300]
            raise InvalidArgument(f"field 'model': {folder} holds no sequence classifier: {reason}") from None
    if missing := sorted(info["missing_keys"]):
        raise InvalidArgument(
            f"field 'model': {folder} has no weights for {', '.join(missing[:4])}: it was not trained as a classifier"
        )
    if not getattr(tokenizer, "is_fast", False):
        raise InvalidArgument(f"field 'model': the tokenizer of {folder} has no fast version (tokenizer.json)")
    classes = int(model.config.num_labels)
    labels = spec.labels or tuple(str(model.config.id2label[number]) for number in range(classes))
    if len(labels) != classes:
        raise InvalidArgument(f"field 'labels': expected {classes} labels, one a class of the model, got {len(labels)}")
    return Source(folder, model.eval(), tokenizer, _max_length(model, tokenizer), labels)


def _max_length(model: Any, tokenizer: Any) -> int:
    """Longest input: positions that the model has and its tokenizer allows."""
    limit = int(min(tokenizer.model_max_length, model.config.max_position_embeddings))
    for name, layer in model.named_modules():
        # RoBERTa and its kin count positions from behind the padding index.
        if name.endswith("position_embeddings") and getattr(layer, "padding_idx", None) is not None:
            limit = min(limit, layer.num_embeddings - layer.padding_idx - 1)
    return limit


_EAGER: dict[Path, Any] = {}


def _eager(folder: Path, model: Any) -> Any:
    """The same model with attention computed step by step, the only way that shows the attention weights."""
    if folder not in _EAGER:
        with quiet_transformers():
            eager = type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        _EAGER[folder] = eager.eval()
    return _EAGER[folder]
