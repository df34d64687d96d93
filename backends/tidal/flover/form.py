"""Architecture of a decoder: one description for all families; `tidal.flover.architectures` has their table."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from tidal.manifest import Strict

Family = Literal[
    "gpt2", "gptj", "gpt_neox", "llama", "mistral", "phi3", "qwen2", "qwen3", "gemma2", "gemma3_text", "olmo2",
    "mixtral", "qwen2_moe", "qwen3_moe", "olmoe",
]  # fmt: skip
Activation = Literal["gelu", "gelu_new", "relu", "silu"]
# Type of keys and values in slots; auto: that of the weights' floating-point numbers.
KeyValueType = Literal["auto", "int8"]
# Fused projections of a layer, see `LayerWeights`.
Projection = Literal["qkv", "output", "up", "down"]


class RopeScaling(Strict):
    """Scaling of rotary frequencies for inputs beyond the training length.

    `linear` divides all of them by `factor`; `llama3` and `yarn` (Peng et al. 2023, §3.2) only the low ones, with a
    transition: that of `llama3` is linear in the rotations over the length of training, that of `yarn` in components.
    `longrope` (Ding et al. 2024) divides each by a factor of its own: one of `short` in a server of texts up to the
    length of training, else one of `long`, for texts of any length.
    """

    kind: Literal["linear", "llama3", "yarn", "longrope"]
    factor: float = Field(ge=1)
    low: float = Field(1.0, gt=0, description="rotations over the length of training up to which they are divided")
    high: float = Field(4.0, gt=0, description="rotations over the length of training from which on they are kept")
    original: int = Field(1, ge=1, description="length of training in tokens")
    magnitude: float = Field(1.0, gt=0, description="yarn, longrope: factor of rotated queries and keys")
    whole: bool = Field(True, description="yarn: the transition begins and ends at whole components")
    short: tuple[float, ...] = Field((), description="longrope: divisor of each frequency up to the length of training")
    long: tuple[float, ...] = Field((), description="longrope: the same beyond it")


class Rotary(Strict):
    """Rotary positions: components `i` and `i + dims / 2` of a head are rotated by an angle that grows with position.

    GPT-J rotates neighbouring components instead; its weights are permuted, which does not change attention.
    """

    dims: int = Field(ge=2, multiple_of=2)
    theta: float = Field(gt=0)
    scaling: RopeScaling | None = None

    @model_validator(mode="after")
    def _check(self) -> Rotary:
        if self.scaling is not None and self.scaling.kind == "longrope":
            for name, factors in (("short", self.scaling.short), ("long", self.scaling.long)):
                if len(factors) != self.dims // 2 or not all(factor > 0 for factor in factors):
                    raise ValueError(f"{name} must be {self.dims // 2} numbers above 0, got {list(factors)}")
        return self


class Experts(Strict):
    """Mixture of experts (Shazeer et al. 2017): gated feed-forward parts; a router chooses some for each token.

    A token's output is the sum of its experts' outputs, each times its probability, the softmax of the router's scores.
    """

    count: int = Field(ge=1, description="experts that the router chooses from")
    chosen: int = Field(ge=1, description="of these, for each token: those with the highest probabilities")
    inner: int = Field(ge=1, description="width of an expert")
    normalised: bool = Field(description="the probabilities of the chosen experts are divided by their sum")
    shared_inner: int | None = Field(
        None, ge=1, description="width of a further expert of all tokens, times the sigmoid of its gate; null: none"
    )
    layers: tuple[int, ...] = Field(min_length=1, description="layers that have experts")

    @model_validator(mode="after")
    def _check(self) -> Experts:
        if self.chosen > self.count:
            raise ValueError(f"chosen is {self.chosen}, must be at most count, {self.count}")
        return self

    @property
    def widths(self) -> tuple[int, ...]:
        """Width of each expert, the shared one last."""
        shared = () if self.shared_inner is None else (self.shared_inner,)
        return (*[self.inner] * self.count, *shared)


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
    local_rotary: Rotary | None = Field(
        None, description="rotary positions of layers with a window; None: those of the others"
    )
    windows: tuple[int | None, ...] = Field(
        (), description="number of last tokens that each layer attends to; null: all of them; empty: all in each layer"
    )
    embedding_scale: float = Field(1.0, gt=0, description="factor of token embeddings; a tied head has none")
    norm: Literal["layer", "rms"]
    norms: Literal["before", "after", "both"] = Field(
        "before", description="norms of attention and feed-forward part: before them, or after, before the sum"
    )
    norm_offset: float = Field(0.0, description="added to the weights of norms")
    epsilon: float = Field(gt=0)
    head_norm: bool = Field(False, description="queries and keys are normalised per head before rotation")
    wide_norm: bool = Field(False, description="head_norm: over all heads of queries, and all of keys, together")
    score_scale: float | None = Field(None, gt=0, description="factor of attention scores; None: 1 / sqrt(head_dim)")
    score_cap: float | None = Field(None, gt=0, description="scores become score_cap * tanh(score / score_cap)")
    logit_cap: float | None = Field(None, gt=0, description="the same of logits")
    parallel: bool = Field(False, description="attention and feed-forward part have the same input")
    shared_norm: bool = Field(False, description="attention and feed-forward part share a norm (parallel only)")
    activation: Activation
    gated: bool = Field(False, description="feed-forward: activation(gate) * up")
    experts: Experts | None = Field(None, description="mixture of experts of some or all layers; null: none")

    @model_validator(mode="after")
    def _check(self) -> DecoderForm:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads, got {self.heads} and {self.kv_heads}")
        if self.rotary is not None and self.rotary.dims > self.head_dim:
            raise ValueError(f"rotary dims is {self.rotary.dims}, must be at most head_dim, {self.head_dim}")
        if self.shared_norm and not self.parallel:
            raise ValueError("shared_norm requires parallel")
        if self.parallel and self.norms != "before":
            raise ValueError("parallel requires norms before")
        if len(self.windows) not in (0, self.layers) or any(each is not None and each < 1 for each in self.windows):
            raise ValueError(f"windows must be {self.layers} numbers above 0 or null, got {self.windows}")
        if self.experts is not None and (not self.gated or self.parallel or self.norms != "before"):
            raise ValueError("experts require gated, norms before, and not parallel")
        return self

    @property
    def kv_width(self) -> int:
        """Number of components of a token's keys, and of its values, in one layer."""
        return self.kv_heads * self.head_dim

    @property
    def attention_scale(self) -> float:
        """Factor of attention scores."""
        return self.score_scale or 1 / math.sqrt(self.head_dim)

    @property
    def trained_positions(self) -> int:
        """Longest sequence that a server can have without another rotation of all of its tokens."""
        scaling = None if self.rotary is None else self.rotary.scaling
        return (
            self.positions if scaling is None or scaling.kind != "longrope" else min(self.positions, scaling.original)
        )

    @property
    def widest_inner(self) -> int:
        """Width of the widest feed-forward part."""
        return self.inner if self.experts is None else max(self.inner, *self.experts.widths)

    def layer_experts(self, layer: int) -> Experts | None:
        """Experts of a layer; None: it has one feed-forward part."""
        return self.experts if self.experts is not None and layer in self.experts.layers else None

    def window(self, layer: int) -> int | None:
        """Number of last tokens that a layer attends to; None: all."""
        return self.windows[layer] if self.windows else None

    def layer_rotary(self, layer: int) -> Rotary | None:
        """Rotary positions of a layer; None: learned position embeddings."""
        return self.rotary if self.local_rotary is None or self.window(layer) is None else self.local_rotary
