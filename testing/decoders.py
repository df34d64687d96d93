"""Decoders small enough to create and run within a test: random weights, byte-level tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from testing.once import built_once
from tidal.flover.architectures import form_of
from tidal.flover.form import KeyValueType
from tidal.flover.models.conversion import convert
from tidal.flover.runner import FloverRunner

FAMILIES = ("gpt2", "gptj", "gpt_neox", "llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "olmo2")
# Families that differ from Llama in names only.
LLAMA_LIKE = ("mistral", "phi3")
# Families with mixtures of experts.
MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe")
WIDTH, HEADS, POSITIONS = 32, 4, 128
# The 256 bytes and the end of text.
VOCABULARY = 257
EOS = 256


def tiny_config(family: str, **fields: Any) -> Any:
    """Return a configuration of two layers; `fields` replace its values."""
    common = {"vocab_size": VOCABULARY, "bos_token_id": EOS, "eos_token_id": EOS, "initializer_range": 0.2}
    small = {
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "intermediate_size": 3 * WIDTH,
        "max_position_embeddings": POSITIONS,
    }
    old = {"n_embd": WIDTH, "n_layer": 2, "n_head": HEADS, "n_positions": POSITIONS}
    shared_heads = {**small, "num_key_value_heads": 2}
    match family:
        case "gpt2":
            return transformers.GPT2Config(**{**common, **old, **fields})
        case "gptj":
            return transformers.GPTJConfig(**{**common, **old, "rotary_dim": 4, **fields})
        case "gpt_neox":
            return transformers.GPTNeoXConfig(**{**common, **small, "rotary_pct": 0.5, **fields})
        case "llama":
            return transformers.LlamaConfig(**{**common, **shared_heads, **fields})
        case "mistral":
            return transformers.MistralConfig(**{**common, **shared_heads, "sliding_window": None, **fields})
        case "phi3":
            return transformers.Phi3Config(**{**common, **shared_heads, "pad_token_id": 0, **fields})
        case "gemma2" | "gemma3_text":
            # Caps and a window that change the logits of short texts.
            fields = {"head_dim": 12, "query_pre_attn_scalar": 20, "sliding_window": 20, "pad_token_id": 0, **fields}
            if family == "gemma2":
                caps = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
                return transformers.Gemma2Config(**{**common, **shared_heads, **caps, **fields})
            return transformers.Gemma3TextConfig(**{**common, **shared_heads, "sliding_window_pattern": 2, **fields})
        case "olmo2":
            return transformers.Olmo2Config(**{**common, **shared_heads, "pad_token_id": 0, **fields})
        case "mixtral":
            experts = {"num_local_experts": 6, "num_experts_per_tok": 2}
            return transformers.MixtralConfig(**{**common, **shared_heads, **experts, **fields})
        case "qwen2_moe" | "qwen3_moe" | "olmoe":
            experts = {"num_experts": 8, "num_experts_per_tok": 3}
            if family == "olmoe":
                return transformers.OlmoeConfig(**{**common, **shared_heads, **experts, "pad_token_id": 0, **fields})
            experts |= {"moe_intermediate_size": 40}
            if family == "qwen3_moe":
                experts |= {"head_dim": 16, "norm_topk_prob": True}
                return transformers.Qwen3MoeConfig(**{**common, **shared_heads, **experts, **fields})
            experts |= {"shared_expert_intermediate_size": 56}
            return transformers.Qwen2MoeConfig(**{**common, **shared_heads, **experts, **fields})
        case "qwen2":
            return transformers.Qwen2Config(**{**common, **shared_heads, **fields})
        case _:
            return transformers.Qwen3Config(**{**common, **shared_heads, "head_dim": 16, **fields})


def tiny_model(family: str, seed: int = 0, **fields: Any) -> Any:
    """Return a model of this configuration; biases and norms are random too, so that tests notice missing ones."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(tiny_config(family, **fields), dtype=torch.float32)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 1:
                    parameter.copy_(torch.randn_like(parameter) * 0.1 + (0 if name.endswith("bias") else 1))
    return model.eval()


def tiny_runner(
    model: Any, *, slots: int = 4, max_length: int = POSITIONS, dtype: torch.dtype = torch.float32,
    kv_cache_dtype: KeyValueType = "auto", kv_cache_bytes: int | None = None,
) -> FloverRunner:  # fmt: skip
    """Return a runner of a model, without writing a file."""
    form = form_of(model.config)
    weights = convert(
        {name: tensor.to(dtype) for name, tensor in model.state_dict().items()},
        form,
        tied=model.config.tie_word_embeddings,
    )
    return FloverRunner(
        form, weights, slots=slots, max_length=max_length, kv_cache_dtype=kv_cache_dtype, kv_cache_bytes=kv_cache_bytes
    )


def write_decoder(folder: Path, family: str = "gpt2", seed: int = 0, **fields: Any) -> Path:
    """Write a random decoder with a byte-level tokenizer in Hugging Face format; returns `folder`."""
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(), bos_token="<end>", eos_token="<end>", model_max_length=POSITIONS
    )
    tiny_model(family, seed, **fields).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_deepened(folder: Path, layers: int = 8) -> Path:
    """Write the decoder of `write_decoder` with more layers, which add nothing: it computes the same in more time."""
    write_decoder(folder)
    model, deep = tiny_model("gpt2"), tiny_model("gpt2", n_layer=layers)
    with torch.no_grad():
        for layer in deep.transformer.h:
            for projection in (layer.attn.c_proj, layer.mlp.c_proj):
                projection.weight.zero_()
                projection.bias.zero_()
    deep.load_state_dict(model.state_dict(), strict=False)
    deep.save_pretrained(folder)
    return folder


def built_decoder(temporary: pytest.TempPathFactory) -> Path:
    """Return a repository, not to be changed, with the decoder `writer` of the family gpt2 with four slots."""

    def build(folder: Path) -> None:
        folder.mkdir()
        build_decoder(folder, "writer", write_decoder(folder / "source", "gpt2"), slots=4)

    return built_once(temporary, "decoder", build) / "repository"


def byte_tokenizer() -> Any:
    """Return a tokenizer whose tokens are the bytes of UTF-8, without an end-of-text token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({sign: number for number, sign in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_ids(text: str) -> list[int]:
    """Return the token ids of a text by `byte_tokenizer`."""
    ids: list[int] = byte_tokenizer().encode(text).ids
    return ids


def build_decoder(folder: Path, name: str, source: Path, *, slots: int, **fields: Any) -> None:
    """Build a `flover` model into the folder `repository` of `folder`.

    Args:
        folder: Folder of the repository and of the spec.
        name: Name of the model.
        source: Folder of the decoder in Hugging Face format.
        slots: Number of slots (`max_concurrency`).
        fields: Further fields of the spec.
    """
    import yaml

    from tidal_builders.flover.build import build_flover
    from tidal_builders.specs import load_spec

    content = {"kind": "flover", "name": name, "model": str(source), "max_concurrency": slots, "threads": 1}
    spec_file = folder / f"{name}.yaml"
    spec_file.write_text(yaml.safe_dump({**content, "profile_seconds": 0.01, **fields}))
    spec: Any = load_spec(spec_file)
    build_flover(spec, folder / "repository", spec_file=spec_file, force=False)
