"""Supported decoder configurations, the errors for others, and weights in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from testing.decoders import FAMILIES, LLAMA_LIKE, MIXTURES, tiny_config, tiny_model
from tidal.errors import InvalidArgument
from tidal.flover.architectures import form_of
from tidal.flover.form import DecoderForm
from tidal.flover.models.conversion import convert
from tidal.flover.models.weights_file import load_weights
from tidal_builders.flover.converting import write_weights


@pytest.mark.parametrize(
    ("family", "fields", "windows"),
    [
        ("mistral", {"sliding_window": None}, ()),
        ("mistral", {"sliding_window": 96}, (96, 96)),
        ("phi3", {"sliding_window": 50}, (50, 50)),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 96, "max_window_layers": 1}, (None, 96)),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 96}, ()),
        ("gemma2", {"sliding_window": 30}, (30, None)),
        ("gemma3_text", {"num_hidden_layers": 3, "sliding_window_pattern": 3}, (20, 20, None)),
        ("llama", {}, ()),
    ],
)
def test_windows_are_those_of_the_layers(family: str, fields: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    form = form_of(tiny_config(family, **fields))
    assert (form.windows, form.positions) == (windows, 128)


@pytest.mark.parametrize("family", [*FAMILIES, *LLAMA_LIKE, *MIXTURES])
def test_a_form_is_equal_after_json(family: str) -> None:
    form = form_of(tiny_config(family))
    assert DecoderForm.model_validate_json(form.model_dump_json()) == form
    assert (form.family, form.layers, form.width, form.vocabulary) == (family, 2, 32, 257)


@pytest.mark.parametrize(
    ("family", "fields", "wanted"),
    [
        ("mixtral", {}, (6, 2, 96, True, None, (0, 1, 2, 3))),
        ("qwen2_moe", {"mlp_only_layers": [3]}, (8, 3, 40, False, 56, (0, 1, 2))),
        ("qwen3_moe", {"decoder_sparse_step": 2, "mlp_only_layers": [1]}, (8, 3, 40, True, None, (3,))),
        ("olmoe", {}, (8, 3, 96, False, None, (0, 1, 2, 3))),
    ],
)
def test_experts_are_those_of_the_configuration(
    family: str, fields: dict[str, Any], wanted: tuple[object, ...]
) -> None:
    form = form_of(tiny_config(family, num_hidden_layers=4, **fields))
    assert form.experts is not None
    assert tuple(value for _, value in form.experts) == wanted
    assert [layer for layer in range(4) if form.layer_experts(layer)] == list(form.experts.layers)
    dense = {"mlp_only_layers": [0, 1, 2, 3]} if family in ("qwen2_moe", "qwen3_moe") else None
    assert dense is None or form_of(tiny_config(family, num_hidden_layers=4, **dense)).experts is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (transformers.BertConfig(), "model_type 'bert' is not supported; accepted: gpt2, gptj"),
        (tiny_config("gpt2", scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx: True"),
        (tiny_config("gpt2", activation_function="tanh"), "has the activation 'tanh'; accepted: gelu"),
        (
            tiny_config(
                "phi3",
                original_max_position_embeddings=64,
                rope_parameters={
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "factor": 2.0,
                    "short_factor": [1.0] * 4,
                    "long_factor": [1.0, 1.0, 0.0, 1.0],
                },
            ),
            r"rope_type 'longrope': .*long must be 4 numbers above 0, got \[1\.0, 1\.0, 0\.0, 1\.0\]",
        ),
        (
            tiny_config("llama", rope_parameters={"rope_type": "proportional", "rope_theta": 1e4}),
            "rope_type 'proportional'; accepted: default, dynamic, linear, llama3, yarn, longrope",
        ),
        (tiny_config("gemma2", use_bidirectional_attention=True), "use_bidirectional_attention: True; accepted is"),
        (tiny_config("gemma3_text", attn_logit_softcapping=5.0), "attn_logit_softcapping: 5.0; accepted is None"),
        (
            transformers.DeepseekV3Config(),
            "'deepseek_v3' is not supported: it is a mixture of experts whose router .*, and its attention compresses",
        ),
        (
            transformers.GptOssConfig(),
            "'gpt_oss' is not supported: it is a mixture of experts of another form; accepted: ",
        ),
        (tiny_config("mixtral", num_experts_per_tok=7), "has num_experts_per_tok: 7; accepted are 1 to 6, its experts"),
        (tiny_config("olmoe", clip_qkv=8.0), "has clip_qkv: 8.0; accepted is None"),
        (transformers.Gemma3Config(), "model_type 'gemma3' is not supported: it is a multimodal model; its text part"),
    ],
)
def test_unsupported_configurations_are_refused(config: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        form_of(config)


def test_a_file_that_lacks_a_layer_is_refused(tmp_path: Path) -> None:
    model = tiny_model("qwen3")
    form, path = form_of(model.config), tmp_path / "weights.safetensors"
    write_weights(model.state_dict(), form, path, "bf16", 32, tied=False)
    with pytest.raises(InvalidArgument, match=r"has no weight 'layers\.2\.attention_norm\.weight'"):
        load_weights(path, form.model_copy(update={"layers": 3}))


@pytest.mark.parametrize(("family", "missing"), [("gemma2", "pre_feedforward"), ("olmo2", "post_attention")])
def test_a_missing_norm_is_named(family: str, missing: str) -> None:
    model = tiny_model(family)
    state = {name: each for name, each in model.state_dict().items() if f"{missing}_layernorm" not in name}
    with pytest.raises(InvalidArgument, match=rf"no weight 'model\.layers\.0\.{missing}_layernorm\.weight'"):
        convert(state, form_of(model.config), tied=False)


@pytest.mark.parametrize(
    ("norms", "missing"), [("both", r"layers\.0\.attention_after"), ("before", r"layers\.0\.attention_norm")]
)
def test_a_file_that_lacks_a_norm_is_refused(tmp_path: Path, norms: str, missing: str) -> None:
    model = tiny_model("llama" if norms == "both" else "olmo2")
    form, path = form_of(model.config), tmp_path / "weights.safetensors"
    write_weights(model.state_dict(), form, path, "bf16", 32, tied=False)
    with pytest.raises(InvalidArgument, match=f"has no weight '{missing}"):
        load_weights(path, form.model_copy(update={"norms": norms}))


@pytest.mark.parametrize("part", ["gate_up_proj", "down_proj", "gate", "shared_expert.down_proj", "shared_expert_gate"])
def test_a_missing_weight_of_experts_is_named(part: str) -> None:
    model = tiny_model("qwen2_moe")
    ends = (f"mlp.{part}.weight", f"experts.{part}")
    state = {name: each for name, each in model.state_dict().items() if not name.endswith(ends)}
    with pytest.raises(InvalidArgument, match=r"no weight 'model\.layers\.0\.mlp\..*', which qwen2_moe requires"):
        convert(state, form_of(model.config), tied=False)


def test_a_missing_weight_is_named() -> None:
    model = tiny_model("llama")
    state = {name: each for name, each in model.state_dict().items() if "up_proj" not in name}
    with pytest.raises(InvalidArgument, match=r"no weight 'model\.layers\.0\.mlp\.up_proj\.weight'"):
        convert(state, form_of(model.config), tied=False)
