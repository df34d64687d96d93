"""Loads the source model from Hugging Face's format, and defines the graph that is compiled."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
import transformers
from tokenizers import normalizers

from tidal.encoder_tasks import task_entry
from tidal.engine_model.manifest import MainOutput
from tidal.errors import InvalidArgument
from tidal_builders.encoder_tasks.entries import BUILD_TASKS
from tidal_builders.encoder_tasks.prepared import Prepared, PrepareOptions
from tidal_builders.foreign.files import read_json
from tidal_builders.foreign.recognise import task_of_architecture
from tidal_builders.quiet import quiet_transformers
from tidal_builders.samples import Row


@dataclass(frozen=True, slots=True)
class Source:
    """An unmodified source model in float32 on the CPU.

    Attributes:
        folder: Folder that it was loaded from.
        task: Task that it is built for.
        model: Model of `transformers`.
        tokenizer: Its fast tokenizer.
        max_length: Maximum input length in tokens.
        prepared: Additions of the task: the graph's tail and settings.
    """

    folder: Path
    task: str
    model: Any
    tokenizer: Any
    max_length: int
    prepared: Prepared

    @property
    def type_ids(self) -> bool:
        """Whether the model has an input `token_type_ids`."""
        return "token_type_ids" in self.tokenizer.model_input_names

    @property
    def main_output(self) -> MainOutput:
        """Output of the engines that the task's answers are computed from."""
        entry = task_entry(self.task)
        return MainOutput(name=entry.engine_output, per_token=entry.per_token, width=self.prepared.width)

    def outputs(self, row: Row, *, attention: bool) -> dict[str, npt.NDArray[np.float32]]:
        """Run the source model on one query.

        Args:
            row: int64 arrays of shape [length] by input name.
            attention: Whether to return `attention_received` as well.

        Returns:
            Arrays without a batch axis by name.
        """
        inputs = {name: torch.from_numpy(values)[None] for name, values in row.items()}
        with torch.inference_mode():
            found = self.prepared.tail(self.model(**inputs), inputs["attention_mask"])[0].numpy()
            outputs = {self.main_output.name: found}
            if attention:
                attentions = _eager(self.model)(**inputs, output_attentions=True).attentions
                received = torch.stack(attentions).sum(dim=(0, 1, 2, 3))
                outputs["attention_received"] = received.numpy()
        return outputs


class Exported(torch.nn.Module):
    """The graph that is compiled, from int64 inputs of shape [batch, length] to named float32 outputs.

    The output `attention_received`, of shape [batch, length], is the attention that each token receives, summed over
    layers, heads and the query rows that are not padding (Tabi, Section 4.2).

    Args:
        source: The source model.
        attention: Whether to return `attention_received` as well.
    """

    def __init__(self, source: Source, *, attention: bool) -> None:
        super().__init__()
        self.attention = attention
        eager = attention or _windowed(source.model)
        self.model = _eager(source.model) if eager else source.model
        self.tail = source.prepared.tail
        self.main = source.main_output.name

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
            return {self.main: self.tail(self.model(**inputs), attention_mask)}
        outputs = self.model(**inputs, output_attentions=True)
        answer = self.tail(outputs, attention_mask)
        kept = attention_mask[:, None, :, None].to(outputs.attentions[0].dtype)
        received = [(weights * kept).sum(dim=(1, 2)) for weights in outputs.attentions]
        return {self.main: answer, "attention_received": torch.stack(received).sum(dim=0)}


def load_source(folder: Path, task: str, options: PrepareOptions) -> Source:
    """Load a source model and its tokenizer.

    Args:
        folder: Folder of the source model.
        task: Task that it is built for.
        options: Fields of the spec that change what is made of it.

    Raises:
        InvalidArgument: The folder contains no model for the task, no fast tokenizer, or weights that are pickled or
            belong to another model.
    """
    if not any(folder.glob("*.safetensors")):
        raise InvalidArgument(
            f"field 'model': {folder} has no weights as safetensors; pickled weights (pytorch_model.bin) are not read, "
            "because they can run code: save the model with `save_pretrained(folder, safe_serialization=True)`"
        )
    build = BUILD_TASKS[task]
    _check_code(folder)
    with quiet_transformers():
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, use_fast=True)
            model, info = getattr(transformers, build.auto_class).from_pretrained(
                folder, dtype=torch.float32, output_loading_info=True, use_safetensors=True
            )
        except (OSError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())[:300]
            raise InvalidArgument(f"field 'model': {folder} contains no model for {task}: {reason}") from None
    if missing := sorted(key for key in info["missing_keys"] if not _unused(build.auto_class, key)):
        raise InvalidArgument(
            f"field 'model': {folder} has no weights for {', '.join(missing[:4])}: it was not trained for {task}"
        )
    if not getattr(tokenizer, "is_fast", False):
        raise InvalidArgument(f"field 'model': the tokenizer of {folder} has no fast version (tokenizer.json)")
    if getattr(model.config, "use_cache", False):
        model.config.use_cache = False  # decoders that embed would return keys and values, which cannot be exported
    prepared = build.load(folder, model.eval(), options)
    prepared.tail.eval()
    if prepared.lower_case:
        _lower_case(tokenizer)
    limits = (_max_length(model, tokenizer), prepared.max_length or _NO_LIMIT)
    return Source(folder, task, model, tokenizer, min(limits), prepared)


_NO_LIMIT = 1 << 30


def _check_code(folder: Path) -> None:
    """Refuse a decoder that embeds by code of its own, which may attend in both directions.

    Raises:
        InvalidArgument: The folder has such code.
    """
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    named = config.get("architectures") or [""]
    if "auto_map" in config and task_of_architecture(str(named[0])) == "text_generation":
        raise InvalidArgument(
            f"field 'model': config.json of {folder} names code of its own for {named[0]} (auto_map), which is not "
            "run; accepted are decoders whose classes are part of transformers"
        )


def _lower_case(tokenizer: Any) -> None:
    """Lowercase texts before they are tokenised, as sentence-transformers does where its file says so."""
    backend = tokenizer.backend_tokenizer
    own = [] if backend.normalizer is None else [backend.normalizer]
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])


def _unused(auto_class: str, weight: str) -> bool:
    """Whether a weight that the folder lacks computes nothing that is used: the pooler of a model without a head."""
    return auto_class == "AutoModel" and weight.startswith("pooler.")


def _max_length(model: Any, tokenizer: Any) -> int:
    """Maximum input length in tokens that the model's positions and its tokenizer allow.

    Raises:
        InvalidArgument: Neither has a limit.
    """
    positions = getattr(model.config, "max_position_embeddings", None)
    limit = min(
        int(tokenizer.model_max_length), positions if isinstance(positions, int) and positions > 0 else _NO_LIMIT
    )
    for name, layer in model.named_modules():
        # RoBERTa and models derived from it count positions from after the padding index.
        if name.endswith("position_embeddings") and getattr(layer, "padding_idx", None) is not None:
            limit = min(limit, layer.num_embeddings - layer.padding_idx - 1)
    if limit >= _NO_LIMIT:
        raise InvalidArgument(
            "field 'model': neither config.json (max_position_embeddings) nor tokenizer_config.json (model_max_length) "
            "limits the length of an input; add model_max_length to tokenizer_config.json"
        )
    return limit


def _windowed(model: Any) -> bool:
    """Whether tokens attend to near ones only, as in ModernBERT.

    Padding then attends to nothing, of which the fused attention of OpenVINO makes NaN, and eager attention does not.
    """
    return any(isinstance(getattr(model.config, name, None), int) for name in ("local_attention", "sliding_window"))


_EAGER: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def _eager(model: Any) -> Any:
    """A copy of a model with eager attention, the only implementation that returns attention weights.

    A copy has the hooks that a task's preparation added, which a model that is loaded again does not have.
    """
    if model not in _EAGER:
        # The caller may be in inference mode, and torch cannot export weights that are copied in it.
        with torch.inference_mode(mode=False):
            copied = copy.deepcopy(model)
        copied.set_attn_implementation("eager")
        _EAGER[model] = copied
    return _EAGER[model]
