"""Random LoRA adapters that an unmodified peft saves for tiny decoders, and tasks imported from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model

from testing.decoders import MIXTURES, tiny_model
from tidal.flover.architectures import form_of
from tidal.flover.tasks.adapter import LoraAdapter, lora_adapter
from tidal.flover.tasks.folder import DecoderBase
from tidal.flover.tasks.layers import layer_slices
from tidal_builders.flover.importing import import_lora

# All linear layers of attention and feed-forward parts, as peft names them; experts are none.
TARGETS = {
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "gptj": ["q_proj", "k_proj", "v_proj", "out_proj", "fc_in", "fc_out"],
    "gpt_neox": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
    "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
}
TARGETS |= dict.fromkeys(
    ("mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "olmo2"), TARGETS["llama"]
)  # fmt: skip
TARGETS |= {family: ["q_proj", "k_proj", "v_proj", "o_proj"] for family in MIXTURES}
DIGEST = "0" * 64


def save_adapter(folder: Path, family: str = "gpt2", seed: int = 0, **options: Any) -> Path:
    """Save a LoRA of random values for `tiny_model(family)`; returns `folder`."""
    chosen = {"r": 4, "lora_alpha": 6, "target_modules": TARGETS[family], "task_type": "CAUSAL_LM"} | options
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        lora = get_peft_model(tiny_model(family), LoraConfig(**chosen))
        for weight in lora.parameters():
            if weight.requires_grad:
                weight.copy_(torch.randn_like(weight) * 0.2)
    lora.save_pretrained(folder)
    return folder


def edit(folder: Path, **changed: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def peft_model(folder: Path, family: str = "gpt2", *, merged: bool) -> Any:
    """Return the tiny model with a saved adapter in peft."""
    model: Any = PeftModel.from_pretrained(tiny_model(family), str(folder)).eval()
    return model.merge_and_unload() if merged else model


def base_of(family: str) -> DecoderBase:
    return DecoderBase(DIGEST, form_of(tiny_model(family).config))


def adapter(folder: Path, family: str = "gpt2") -> LoraAdapter:
    """Return a saved adapter as the runner takes it."""
    base = base_of(family)
    return lora_adapter(import_lora(folder, base)[0], layer_slices(base.form))
