"""Supported decoder configurations, the errors for others, and weights in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from testing.decoders import FAMILIES, LLAMA_LIKE, tiny_config, tiny_model
from tidal.errors import InvalidArgument
from tidal.flover.form import DecoderForm, form_of
from tidal.flover.models.weights import convert
from tidal.flover.models.weights_file import load_weights
from tidal_builders.flover.converting import write_weights


@pytest.mark.parametrize(
    ("family", "fields", "positions"),
    [
        ("mistral", {"sliding_window": None}, 128),
        ("mistral", {"sliding_window": 96}, 96),
        ("mistral", {"sliding_window": 4096}, 128),
        ("phi3", {"sliding_window": 50}, 50),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 96}, 96),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 96}, 128),
    ],
)
def test_a_sliding_window_limits_sequences(family: str, fields: dict[str, Any], positions: int) -> None:
    """Up to the window a model attends to all tokens, so that it needs none."""
    assert form_of(tiny_config(family, **fields)).positions == positions


@pytest.mark.parametrize("family", [*FAMILIES, *LLAMA_LIKE])
def test_a_form_is_equal_after_json(family: str) -> None:
    form = form_of(tiny_config(family))
    assert DecoderForm.model_validate_json(form.model_dump_json()) == form
    assert (form.family, form.layers, form.width, form.vocabulary) == (family, 2, 32, 257)


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
                    "long_factor": [1.0] * 4,
                },
            ),
            "rope_type 'longrope'; accepted: default, dynamic, linear, llama3, yarn",
        ),
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


def test_a_missing_weight_is_named() -> None:
    model = tiny_model("llama")
    state = {name: each for name, each in model.state_dict().items() if "up_proj" not in name}
    with pytest.raises(InvalidArgument, match=r"no weight 'model\.layers\.0\.mlp\.up_proj\.weight'"):
        convert(state, form_of(model.config), tied=False)
