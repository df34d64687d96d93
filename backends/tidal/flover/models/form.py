"""What a decoder is made of: one description for GPT-2, GPT-J, GPT-NeoX, Llama and Qwen."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from tidal.manifest import Strict

Family = Literal["gpt2", "gptj", "gpt_neox", "llama", "qwen2", "qwen3"]
Activation = Literal["gelu", "gelu_new", "relu", "silu"]


class RopeScaling(Strict):
    """How rotary frequencies are stretched for inputs beyond the length of training.

    `linear` divides all of them by `factor`; `llama3` only the low ones, with a smooth passage in between.
    """

    kind: Literal["linear", "llama3"]
    factor: float = Field(ge=1)
    low: float = Field(1.0, gt=0, description="llama3: wavelengths above original / low are divided")
    high: float = Field(4.0, gt=0, description="llama3: wavelengths below original / high are kept")
    original: int = Field(1, ge=1, description="llama3: length of training in tokens")


class Rotary(Strict):
    """Rotary positions: pairs of a head's first `dims` components are turned by angles that grow with the position."""

    dims: int = Field(ge=2, multiple_of=2)
    theta: float = Field(gt=0)
    interleaved: bool = Field(description="pairs are neighbours (GPT-J); else components of the two halves")
    scaling: RopeScaling | None = None


class DecoderForm(Strict):
    """A decoder by its sizes and by what its family does differently.

    Which linear layers have biases follows from the weights.
    """

    family: Family
    vocabulary: int = Field(ge=1, description="token ids are below this")
    layers: int = Field(ge=1)
    width: int = Field(ge=1)
    heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1, description="heads of keys and values; each serves heads / kv_heads queries")
    head_dim: int = Field(ge=1)
    inner: int = Field(ge=1, description="width inside the feed-forward part")
    positions: int = Field(ge=1, description="longest sequence in tokens")
    rotary: Rotary | None = Field(description="None: positions have learned embeddings")
    norm: Literal["layer", "rms"]
    epsilon: float = Field(gt=0)
    head_norm: bool = Field(False, description="queries and keys are normalised head by head before they are turned")
    parallel: bool = Field(False, description="attention and feed-forward read the same input")
    shared_norm: bool = Field(False, description="and the same normalisation of it (parallel only)")
    activation: Activation
    gated: bool = Field(False, description="feed-forward: activation(gate) * up")

    @model_validator(mode="after")
    def _check(self) -> DecoderForm:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads, got {self.heads} and {self.kv_heads}")
        if self.rotary is not None and self.rotary.dims > self.head_dim:
            raise ValueError(f"rotary turns {self.rotary.dims} components of heads of {self.head_dim}")
        if self.shared_norm and not self.parallel:
            raise ValueError("shared_norm goes with parallel")
        return self

    @property
    def kv_width(self) -> int:
        """Components of a token's keys, and of its values, in one layer."""
        return self.kv_heads * self.head_dim
