"""Tokens and logits of a runner compared with `transformers` and the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from testing.decoders import FAMILIES, LLAMA_LIKE, MIXTURES, POSITIONS, VOCABULARY, tiny_model, tiny_runner
from tests.flover.generating import Generation, generate_together, generated_by_transformers, random_sequences
from tidal.flover.architectures import form_of
from tidal.flover.memory.slots import SlotMove

_ROPE = {"rope_theta": 10000.0}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
_LONGROPE = {
    "rope_type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.2], "long_factor": [1.0, 1.5, 3.0, 2.5],
}  # fmt: skip
_LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize("family", [*FAMILIES, *LLAMA_LIKE, *MIXTURES])
def test_tokens_equal_those_of_transformers(family: str) -> None:
    model, draw = tiny_model(family), np.random.default_rng(1)
    sequences = random_sequences(draw, 32 if family in ("gpt2", "llama") else 8, VOCABULARY)
    generate_together(tiny_runner(model, slots=6), sequences, draw)
    for each in sequences:
        assert each.stays < 0 or len(each.tokens) == each.wanted
        wanted = generated_by_transformers(model, each.prompt, len(each.tokens)) if each.tokens else []
        assert each.tokens == wanted


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("gpt2", {"activation_function": "relu", "n_inner": 40}),
        ("gptj", {"rotary_dim": 8, "activation_function": "gelu"}),
        ("gpt_neox", {"use_parallel_residual": False, "attention_bias": False, "rotary_pct": 1.0}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 10}),
        ("llama", {"rope_parameters": {**_ROPE, **_LLAMA3, "rope_type": "llama3"}}),
        ("llama", {"rope_parameters": {**_ROPE, "rope_type": "linear", "factor": 4.0}}),
        ("llama", {"rope_parameters": {**_ROPE, **_YARN}}),
        ("llama", {"rope_parameters": {**_ROPE, **_YARN, "beta_fast": 8, "beta_slow": 2, "truncate": False}}),
        ("llama", {"rope_parameters": {**_ROPE, **_YARN, "mscale": 0.7, "mscale_all_dim": 1.1}}),
        ("llama", {"rope_parameters": {**_ROPE, **_YARN, "attention_factor": 1.3}}),
        ("llama", {"rope_parameters": {**_ROPE, "rope_type": "dynamic", "factor": 2.0}}),
        ("mistral", {"sliding_window": 96, "head_dim": 12}),
        ("phi3", {"rope_parameters": {**_ROPE, "rope_type": "default", "partial_rotary_factor": 0.5}}),
        ("phi3", {"sliding_window": 96, "tie_word_embeddings": True}),
        ("phi3", {"original_max_position_embeddings": 64, "rope_parameters": {**_ROPE, **_LONGROPE}}),
        ("phi3", {"original_max_position_embeddings": 128, "rope_parameters": {**_ROPE, **_LONGROPE, "factor": 4.0}}),
        (
            "phi3",
            {
                "original_max_position_embeddings": 64,
                "rope_parameters": {**_ROPE, **_LONGROPE, "factor": 2.0, "attention_factor": 1.3},
                "sliding_window": 30,
            },
        ),
        ("mistral", {"sliding_window": 20}),
        ("qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 96, "max_window_layers": 1}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
        ("qwen3", {"attention_bias": True}),
        ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True}),
        ("gemma2", {"layer_types": ["full_attention", "sliding_attention"], "tie_word_embeddings": False}),
        ("gemma2", {"sliding_window": 1, "num_key_value_heads": 4, "hidden_activation": "silu"}),
        ("gemma3_text", {"final_logit_softcapping": 2.0, "sliding_window": 64, "num_key_value_heads": 1}),
        (
            "gemma3_text",
            {
                "rope_parameters": {
                    "full_attention": {"rope_theta": 1e5, "rope_type": "linear", "factor": 8.0},
                    "sliding_attention": {"rope_theta": 1e3, "rope_type": "default"},
                }
            },
        ),
        ("olmo2", {"attention_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 4}),
        ("mixtral", {"sliding_window": 20, "num_experts_per_tok": 1}),
        ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 4, "tie_word_embeddings": True}),
        ("qwen2_moe", {"norm_topk_prob": True, "decoder_sparse_step": 2}),
        ("qwen2_moe", {"use_sliding_window": True, "sliding_window": 20, "mlp_only_layers": [0], "hidden_act": "gelu"}),
        ("qwen2_moe", {"shared_expert_intermediate_size": 24, "num_experts": 0}),
        ("qwen3_moe", {"norm_topk_prob": False, "attention_bias": True, "mlp_only_layers": [1]}),
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 20}),
        ("olmoe", {"norm_topk_prob": True, "attention_bias": True, "num_key_value_heads": 4}),
    ],
)
def test_logits_of_variants_equal_those_of_transformers(family: str, fields: dict[str, Any]) -> None:
    model = tiny_model(family, **fields)
    longest = min(form_of(model.config).positions, POSITIONS)
    runner, ids = tiny_runner(model, slots=2, max_length=longest), np.random.default_rng(0).integers(0, VOCABULARY, 90)
    with torch.no_grad():
        wanted = model(torch.from_numpy(ids)[None]).logits[0]
    runner.prefill(1, ids[:50], 0, last=False)
    found = runner.prefill(1, ids[50:80], 50)
    assert found is not None
    torch.testing.assert_close(found, wanted[79], rtol=1e-4, atol=1e-4)
    for position in range(80, 90):
        logits = runner.decode(1, 2, ids[position : position + 1], np.array([position]))
        torch.testing.assert_close(logits[0], wanted[position], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "olmo2", "mistral", *MIXTURES])
def test_logits_without_native_kernels_equal_those_of_transformers(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidal.flover.native.library.library", lambda: None)
    model = tiny_model(family, **({"sliding_window": 20} if family == "mistral" else {}))
    runner, ids = tiny_runner(model, slots=4), np.random.default_rng(0).integers(0, VOCABULARY, 90)
    assert runner._model.native_pass is None
    with torch.no_grad():
        wanted = model(torch.from_numpy(ids)[None]).logits[0]
    close = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(runner.score(0, ids), wanted, **close)
    runner.prefill(1, ids[:10], 0, last=False)
    runner.prefill(2, ids[:50], 0, last=False)
    torch.testing.assert_close(runner.prefill(2, ids[50:80], 50), wanted[79], **close)
    for step in range(10):
        rows = np.array([10 + step, 80 + step])
        torch.testing.assert_close(runner.decode(1, 3, ids[rows], rows), wanted[rows], **close)


def test_long_texts_of_longrope_have_the_tokens_of_transformers() -> None:
    """Up to the length of training a server has the factors of short texts, and beyond it those of long ones."""
    rope = {**_ROPE, **_LONGROPE, "factor": 2.0}
    model = tiny_model("phi3", original_max_position_embeddings=64, rope_parameters=rope)
    draw = np.random.default_rng(5)
    for max_length, lengths in ((64, (1, 20, 40)), (POSITIONS, (65, 80, 100))):
        runner = tiny_runner(model, slots=3, max_length=max_length)
        sequences = [Generation(draw.integers(0, VOCABULARY, length), 20, 0) for length in lengths]
        generate_together(runner, sequences, draw)
        for each in sequences:
            assert each.tokens == generated_by_transformers(model, each.prompt, 20)


def test_rows_do_not_depend_on_other_rows_or_earlier_contents() -> None:
    model, draw = tiny_model("qwen2"), np.random.default_rng(0)
    ids = draw.integers(0, VOCABULARY, 20)
    alone, beside = tiny_runner(model, slots=4), tiny_runner(model, slots=4)
    alone.prefill(0, ids, 0)
    for slot in range(4):
        beside.prefill(slot, draw.integers(0, VOCABULARY, 70), 0)
    beside.prefill(2, ids, 0)
    wanted = alone.decode(0, 1, ids[:1], np.array([20]))
    found = beside.decode(0, 4, np.array([5, 6, ids[0], 7]), np.array([70, 3, 20, 127]))
    torch.testing.assert_close(found[2:3], wanted, rtol=1e-5, atol=1e-5)


def test_a_decode_step_over_a_prompt_in_prefill_does_not_change_it() -> None:
    model, ids = tiny_model("llama"), np.arange(30)
    runner, alone = tiny_runner(model, slots=3), tiny_runner(model, slots=3)
    for slot in (0, 2):
        runner.prefill(slot, ids[:9], 0)
    runner.prefill(1, ids[:10], 0, last=False)
    runner.decode(0, 3, np.array([1, 0, 2]), np.array([9, 10, 9]))
    found, wanted = runner.prefill(1, ids[10:], 10), alone.prefill(1, ids, 0)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_an_exchange_swaps_the_contents_of_slots() -> None:
    model, draw = tiny_model("gptj"), np.random.default_rng(0)
    runner, still = tiny_runner(model, slots=3), tiny_runner(model, slots=3)
    long, short = draw.integers(0, VOCABULARY, 60), draw.integers(0, VOCABULARY, 7)
    for each in (runner, still):
        each.prefill(0, long, 0)
        each.prefill(2, short, 0)
    assert runner.move_slots([SlotMove(0, 2, exchange=True), SlotMove(2, 1)], [60, 0, 7]) > 0
    wanted = still.decode(0, 3, np.array([3, 0, 4]), np.array([60, 0, 7]))
    found = runner.decode(0, 2, np.array([4, 3]), np.array([7, 60]))
    torch.testing.assert_close(found, wanted[[2, 0]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "llama", *MIXTURES])
def test_bf16_generates_nearly_the_same_tokens(family: str) -> None:
    model = tiny_model(family)
    runner, ids = tiny_runner(model, dtype=torch.bfloat16), np.random.default_rng(0).integers(0, VOCABULARY, 100)
    with torch.no_grad():
        wanted = model(torch.from_numpy(ids)[None]).logits[0]
    found = [runner.prefill(0, ids[:1], 0)]
    found += [runner.decode(0, 1, ids[at : at + 1], np.array([at]))[0] for at in range(1, 100)]
    logits = torch.stack([each for each in found if each is not None])
    assert (logits.argmax(-1) == wanted.argmax(-1)).float().mean() >= 0.9
    errors = (logits - wanted).abs().amax(-1)
    # Rounding changes the experts of some tokens, whose scores are almost equal.
    assert errors.quantile(0.9 if family in MIXTURES else 1.0) < 0.05 * wanted.abs().max()
