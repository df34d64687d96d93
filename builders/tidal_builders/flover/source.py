"""A decoder as Hugging Face loads it, with its fast tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tidal.errors import InvalidArgument
from tidal.flover.models.form import DecoderForm, form_of
from tidal.tasks.digests import base_digest, tensor_digest
from tidal_builders.foreign.recognise import recognise
from tidal_builders.quiet import quiet_transformers

_CHAT = (
    "the model has a chat template, which is not applied: prompts are taken as they are; a client that wants the chat "
    "format applies the template itself (`tokenizer.apply_chat_template(messages, tokenize=False, "
    "add_generation_prompt=True)`) and sends the result as the prompt"
)


@dataclass(frozen=True, slots=True)
class DecoderSource:
    """An unmodified decoder in float32 on the CPU."""

    model: Any
    tokenizer: Any
    form: DecoderForm

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a generation."""
        found = self.model.generation_config.eos_token_id
        if found is None:
            return ()
        return tuple(found) if isinstance(found, list) else (int(found),)

    @property
    def digest(self) -> str:
        """Over all weights: what tasks name as their base."""
        return decoder_digest(self.model)


def decoder_digest(model: Any) -> str:
    """Hex SHA-256 over all weights of a decoder, which names it as a base."""
    return base_digest({name: tensor_digest(tensor.numpy()) for name, tensor in model.state_dict().items()})


def load_causal_lm(folder: Path) -> Any:
    """Load a decoder alone, in float32 on the CPU.

    Raises:
        InvalidArgument: weights are missing.
        OSError, ValueError, KeyError: as transformers raises them for a folder that it cannot load.
    """
    with quiet_transformers():
        model, info = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True, use_safetensors=True
        )
    if missing := sorted(info["missing_keys"]):
        raise InvalidArgument(f"{folder} has no weights for {', '.join(missing[:4])}")
    return model.eval()


def not_served(folder: Path) -> tuple[str, ...]:
    """What the source model has and is not served, a sentence each."""
    return (_CHAT,) if recognise(folder).chat_template else ()


def load_decoder(folder: Path) -> DecoderSource:
    """Load a decoder and its tokenizer.

    Raises:
        InvalidArgument: the folder holds no decoder of a family that is offered, no fast tokenizer, or weights that
            are pickled or of another model.
    """
    if not any(folder.glob("*.safetensors")):
        raise InvalidArgument(
            f"field 'model': {folder} has no weights as safetensors, and pickled ones (pytorch_model.bin) are not "
            "read, for they can run code: save the model with `save_pretrained(folder, safe_serialization=True)`"
        )
    try:
        with quiet_transformers():
            form = form_of(AutoConfig.from_pretrained(folder))
            tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True)
        model = load_causal_lm(folder)
    except InvalidArgument as error:
        raise InvalidArgument(f"field 'model': {error}") from None
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InvalidArgument(f"field 'model': {folder} holds no decoder: {reason}") from None
    if not getattr(tokenizer, "is_fast", False):
        raise InvalidArgument(f"field 'model': the tokenizer of {folder} has no fast version (tokenizer.json)")
    largest = max(tokenizer.get_vocab().values())
    if largest >= form.vocabulary:
        raise InvalidArgument(
            f"field 'model': the tokenizer of {folder} has the id {largest}, the model ids below {form.vocabulary}"
        )
    return DecoderSource(model, tokenizer, form)
