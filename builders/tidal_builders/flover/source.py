"""Loads the source model of a decoder with its fast tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tidal.errors import InvalidArgument
from tidal.flover.architectures import form_of
from tidal.flover.chat import ChatFormat
from tidal.flover.form import DecoderForm
from tidal.flover.models.conversion import expert_layers
from tidal.tasks.digests import base_digest, tensor_digest
from tidal_builders.flover.converting import SourceTensors
from tidal_builders.quiet import quiet_transformers

# Names of tensors in files, where transformers calls them otherwise.
_OLD_NAMES = {"lm_head.weight": "embed_out.weight"}


@dataclass(frozen=True, slots=True)
class DecoderSource:
    """An unmodified decoder in float32 on the CPU, see `load_causal_lm`.

    Attributes:
        model: Model of transformers.
        tokenizer: Fast tokenizer of transformers.
        form: Architecture of the decoder.
    """

    model: Any
    tokenizer: Any
    form: DecoderForm

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Token ids that end a text."""
        eos = self.model.generation_config.eos_token_id
        if eos is None:
            return ()
        return tuple(eos) if isinstance(eos, list) else (int(eos),)

    @property
    def chat(self) -> ChatFormat | None:
        """Chat templates of the tokenizer; None if it has none."""
        templates = self.tokenizer.chat_template
        if not templates:
            return None
        named = templates if isinstance(templates, dict) else {"default": templates}
        return ChatFormat(templates=named, special_tokens=dict(self.tokenizer.special_tokens_map))

    @property
    def digest(self) -> str:
        """Digest of all weights, which tasks refer to as their base."""
        return decoder_digest(self.model)


class SourceFacts(BaseModel):
    """Properties of the source model that serving needs."""

    architecture: str
    base: str
    form: DecoderForm
    max_length: int
    eos_token_ids: tuple[int, ...]
    tied: bool


def decoder_digest(model: Any) -> str:
    """Return the hex SHA-256 of all weights of a decoder."""
    return base_digest({name: tensor_digest(tensor.numpy()) for name, tensor in model.state_dict().items()})


def load_causal_lm(folder: Path, max_length: int | None = None) -> Any:
    """Load a decoder without its tokenizer, in float32 on the CPU.

    Args:
        folder: Folder in Hugging Face format.
        max_length: Longest text of the server in tokens, which chooses the factors of `longrope` for all texts, see
            `RopeScaling`; None: texts up to the length of training.

    Raises:
        InvalidArgument: Weights are missing, or quantised in a way that is not supported.
        OSError, ValueError, KeyError: Errors of transformers for a folder that it cannot load.
    """
    with quiet_transformers():
        config = AutoConfig.from_pretrained(folder)
        _choose_factors(config, max_length)
        if getattr(config, "quantization_config", None):
            model, missing = _dequantized(folder, config)
        else:
            model, info = AutoModelForCausalLM.from_pretrained(
                folder, config=config, dtype=torch.float32, output_loading_info=True, use_safetensors=True
            )
            missing = info["missing_keys"]
    if missing:
        raise InvalidArgument(f"{folder} has no weights for {', '.join(sorted(missing)[:4])}")
    return model.eval()


def _choose_factors(config: Any, max_length: int | None) -> None:
    """Make the long factors of `longrope` those of short texts, too, if a server has longer ones."""
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope" and (max_length or 0) > rope["original_max_position_embeddings"]:
        rope["short_factor"] = rope["long_factor"]


def _dequantized(folder: Path, config: Any) -> tuple[Any, list[str]]:
    """The model of a checkpoint of integers, with the weights that they stand for, and the names of missing weights."""
    tensors = SourceTensors(folder, config.model_type)
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    names = {name: name if name in tensors else _OLD_NAMES.get(name, name) for name in model.state_dict()}
    state = {name: tensors[stored] for name, stored in names.items() if stored in tensors}
    state |= _fused_experts(tensors, config, names)
    missing = model.load_state_dict(state, strict=False).missing_keys
    if config.tie_word_embeddings:
        model.tie_weights()
        missing = [name for name in missing if name != "lm_head.weight"]
    return model, missing


def decoder_files(folder: Path, field: str = "model") -> tuple[DecoderForm, Any]:
    """Return the architecture of a decoder and its fast tokenizer, without loading its weights.

    Args:
        folder: Folder in Hugging Face format.
        field: Field of the spec that names it, for errors.

    Raises:
        InvalidArgument: The folder contains no decoder of a supported family, no fast tokenizer, or weights that are
            pickled.
    """
    if not any(folder.glob("*.safetensors")):
        raise InvalidArgument(
            f"field '{field}': {folder} has no weights as safetensors; pickled ones (pytorch_model.bin) are not "
            "accepted because they can run code: save the model with `save_pretrained(folder, safe_serialization=True)`"
        )
    try:
        with quiet_transformers():
            form = form_of(AutoConfig.from_pretrained(folder))
            tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True)
    except InvalidArgument as error:
        raise InvalidArgument(f"field '{field}': {error}") from None
    except (OSError, ValueError, KeyError) as error:
        raise _unloadable(folder, field, error) from None
    if not getattr(tokenizer, "is_fast", False):
        raise InvalidArgument(
            f"field '{field}': {folder} has no fast tokenizer; accepted is a folder with tokenizer.json"
        )
    largest = max(tokenizer.get_vocab().values())
    if largest >= form.vocabulary:
        raise InvalidArgument(
            f"field '{field}': the tokenizer of {folder} has the id {largest}; the model accepts ids below "
            f"{form.vocabulary}"
        )
    return form, tokenizer


def _unloadable(folder: Path, field: str, error: Exception) -> InvalidArgument:
    reason = " ".join(str(error).split())[:300]
    return InvalidArgument(f"field '{field}': cannot load a decoder from {folder}: {reason}")


def _fused_experts(tensors: SourceTensors, config: Any, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """The experts of each layer in one tensor, as the modules of transformers have them."""
    ending, state = "mlp.experts.gate_up_proj", dict[str, torch.Tensor]()
    for name in names:
        if name.endswith(ending) and name not in tensors:
            prefix = name.removesuffix(ending)
            up, down = expert_layers(tensors, config.model_type, config.num_experts, prefix)
            state[name] = torch.stack([each.floats() for each in up])
            state[f"{prefix}mlp.experts.down_proj"] = torch.stack([each.floats() for each in down])
    return state


def load_decoder(folder: Path, max_length: int | None = None) -> DecoderSource:
    """Load a decoder and its tokenizer.

    Args:
        folder: Folder in Hugging Face format.
        max_length: See `load_causal_lm`.

    Raises:
        InvalidArgument: The folder contains no decoder of a supported family, no fast tokenizer, or weights that are
            pickled or of another model.
    """
    form, tokenizer = decoder_files(folder)
    try:
        model = load_causal_lm(folder, max_length)
    except InvalidArgument as error:
        raise InvalidArgument(f"field 'model': {error}") from None
    except (OSError, ValueError, KeyError) as error:
        raise _unloadable(folder, "model", error) from None
    return DecoderSource(model, tokenizer, form)
