"""Architecture of a decoder: one description for GPT-2, GPT-J, GPT-NeoX, Llama, Mistral, Phi-3 and Qwen."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from tidal.errors import InvalidArgument
from tidal.manifest import Strict

Family = Literal["gpt2", "gptj", "gpt_neox", "llama", "mistral", "phi3", "qwen2", "qwen3"]
Activation = Literal["gelu", "gelu_new", "relu", "silu"]
# Fused projections of a layer, see `LayerWeights`.
Projection = Literal["qkv", "output", "up", "down"]


class RopeScaling(Strict):
    """Scaling of rotary frequencies for inputs beyond the training length.

    `linear` divides all of them by `factor`; `llama3` and `yarn` (Peng et al. 2023, §3.2) only the low ones, with a
    transition: that of `llama3` is linear in the rotations over the length of training, that of `yarn` in components.
    """

    kind: Literal["linear", "llama3", "yarn"]
    factor: float = Field(ge=1)
    low: float = Field(1.0, gt=0, description="rotations over the length of training up to which they are divided")
    high: float = Field(4.0, gt=0, description="rotations over the length of training from which on they are kept")
    original: int = Field(1, ge=1, description="length of training in tokens")
    magnitude: float = Field(1.0, gt=0, description="yarn: factor of rotated queries and keys")
    whole: bool = Field(True, description="yarn: the transition begins and ends at whole components")


class Rotary(Strict):
    """Rotary positions: components `i` and `i + dims / 2` of a head are rotated by an angle that grows with position.

    GPT-J rotates neighbouring components instead; its weights are permuted, which does not change attention.
    """

    dims: int = Field(ge=2, multiple_of=2)
    theta: float = Field(gt=0)
    scaling: RopeScaling | None = None


class DecoderForm(Strict):
    """Sizes of a decoder and the variants of its family; which linear layers have biases follows from the weights."""

    family: Family
    vocabulary: int = Field(ge=1, description="number of token ids")
    layers: int = Field(ge=1)
    width: int = Field(ge=1)
    heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1, description="heads of keys and values, each shared by heads / kv_heads query heads")
    head_dim: int = Field(ge=1)
    inner: int = Field(ge=1, description="width of the feed-forward part")
    positions: int = Field(ge=1, description="longest sequence in tokens")
    rotary: Rotary | None = Field(description="None: learned position embeddings")
    norm: Literal["layer", "rms"]
    epsilon: float = Field(gt=0)
    head_norm: bool = Field(False, description="queries and keys are normalised per head before rotation")
    parallel: bool = Field(False, description="attention and feed-forward part have the same input")
    shared_norm: bool = Field(False, description="attention and feed-forward part share a norm (parallel only)")
    activation: Activation
    gated: bool = Field(False, description="feed-forward: activation(gate) * up")

    @model_validator(mode="after")
    def _check(self) -> DecoderForm:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads, got {self.heads} and {self.kv_heads}")
        if self.rotary is not None and self.rotary.dims > self.head_dim:
            raise ValueError(f"rotary dims is {self.rotary.dims}, must be at most head_dim, {self.head_dim}")
        if self.shared_norm and not self.parallel:
            raise ValueError("shared_norm requires parallel")
        return self

    @property
    def kv_width(self) -> int:
        """Number of components of a token's keys, and of its values, in one layer."""
        return self.kv_heads * self.head_dim


def form_of(config: Any) -> DecoderForm:
    """Return the architecture of a Hugging Face model.

    Args:
        config: Configuration of the model, as `transformers` loads it.

    Raises:
        InvalidArgument: The family or a variant is not supported; names the field, its value and what is accepted.
    """
    family = config.model_type
    if family not in get_args(Family):
        raise InvalidArgument(f"model_type '{family}' is not supported; accepted: {', '.join(get_args(Family))}")
    for field, accepted in _REQUIRED_FIELDS.get(family, {}).items():
        if (value := getattr(config, field, accepted)) != accepted:
            raise InvalidArgument(f"the model's configuration has {field}: {value}; accepted is {accepted}")
    heads, width = config.num_attention_heads, config.hidden_size
    head_dim = getattr(config, "head_dim", None) or width // heads
    llama = family in _LLAMA_LIKE
    activation = config.hidden_act if llama or family == "gpt_neox" else config.activation_function
    activation = _ACTIVATION_ALIASES.get(activation, activation)
    if activation not in get_args(Activation):
        raise InvalidArgument(
            f"the model's configuration has the activation '{activation}'; accepted: {', '.join(get_args(Activation))}"
        )
    return DecoderForm(
        family=family,
        vocabulary=config.vocab_size,
        layers=config.num_hidden_layers,
        width=width,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=head_dim,
        inner=config.intermediate_size if llama or family == "gpt_neox" else config.n_inner or 4 * width,
        positions=_positions(config),
        rotary=_rotary(config, head_dim),
        norm="rms" if llama else "layer",
        epsilon=next(
            getattr(config, name)
            for name in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")
            if hasattr(config, name)
        ),
        head_norm=family == "qwen3",
        parallel=family == "gptj" or (family == "gpt_neox" and config.use_parallel_residual),
        shared_norm=family == "gptj",
        activation=activation,
        gated=llama,
    )


_ACTIVATION_ALIASES = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new", "swish": "silu"}
# Fields of which only the usual value is supported.
_REQUIRED_FIELDS: dict[str, dict[str, Any]] = {
    "gpt2": {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
}
_LLAMA_LIKE = ("llama", "mistral", "phi3", "qwen2", "qwen3")


def _positions(config: Any) -> int:
    """Longest sequence: up to its sliding window a model attends to all tokens."""
    longest: int = config.max_position_embeddings
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    return longest if window is None else min(longest, int(window))


def _rotary(config: Any, head_dim: int) -> Rotary | None:
    if config.model_type == "gpt2":
        return None
    if config.model_type == "gptj":
        return Rotary(dims=config.rotary_dim, theta=10000.0)
    rope = config.rope_parameters
    kind, scaling = rope.get("rope_type", "default"), None
    match kind:
        case "default" | "dynamic":  # dynamic: changes frequencies beyond `max_position_embeddings` only
            pass
        case "linear":
            scaling = RopeScaling(kind="linear", factor=rope["factor"])
        case "llama3":
            scaling = RopeScaling(
                kind="llama3",
                factor=rope["factor"],
                low=rope["low_freq_factor"],
                high=rope["high_freq_factor"],
                original=rope["original_max_position_embeddings"],
            )
        case "yarn":
            original = rope["original_max_position_embeddings"]
            factor = rope.get("factor") or config.max_position_embeddings / original
            scaling = RopeScaling(
                kind="yarn",
                factor=factor,
                low=rope.get("beta_slow") or 1,
                high=rope.get("beta_fast") or 32,
                original=original,
                magnitude=_yarn_magnitude(rope, factor),
                whole=rope.get("truncate", True),
            )
        case _:
            raise InvalidArgument(
                f"the model's configuration has rope_type '{kind}'; accepted: default, dynamic, linear, llama3, yarn"
            )
    dims = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    return Rotary(dims=dims, theta=rope["rope_theta"], scaling=scaling)


def _yarn_magnitude(rope: dict[str, Any], factor: float) -> float:
    """Factor of queries and keys, 0.1 ln(factor) + 1 (YaRN, equation 22) unless the configuration has another one."""
    if (given := rope.get("attention_factor")) is not None:
        return float(given)
    grown = math.log(factor) if factor > 1 else 0.0
    if (part := rope.get("mscale")) and (whole := rope.get("mscale_all_dim")):
        return float((0.1 * part * grown + 1) / (0.1 * whole * grown + 1))
    return 0.1 * grown + 1
