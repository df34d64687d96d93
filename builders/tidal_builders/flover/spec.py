"""The spec of a decoder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tidal.flover.form import KeyValueType
from tidal.flover.manifest import QualityBounds
from tidal.flover.policies.speculation import MOST_DRAFTED
from tidal_builders.spec import ModelSpec

# Maximum difference of any logit of the compared tokens, in standard deviations of the source's logits.
DEFAULT_TOLERANCE: Mapping[str, float] = {"fp32": 1e-3, "bf16": 0.25, "int8": 0.5, "int4": 3.0}
# Minimum share of tokens that equal the source's.
LEAST_MATCH: Mapping[str, float] = {"fp32": 1.0, "bf16": 0.9, "int8": 0.9, "int4": 0.6}
LONGEST_DEFAULT = 1024


def default_tolerance(precision: str, kv_cache_dtype: KeyValueType) -> float:
    """Maximum difference of any logit: keys and values of 8 bits are as accurate as weights of 8 bits."""
    return max(DEFAULT_TOLERANCE[each] for each in _rounded(precision, kv_cache_dtype))


def least_match(precision: str, kv_cache_dtype: KeyValueType) -> float:
    """Minimum share of tokens that equal the source's."""
    return min(LEAST_MATCH[each] for each in _rounded(precision, kv_cache_dtype))


def _rounded(precision: str, kv_cache_dtype: KeyValueType) -> tuple[str, ...]:
    """What a decoder is rounded to."""
    return (precision,) if kv_cache_dtype == "auto" else (precision, kv_cache_dtype)


class QualityFields(BaseModel):
    """Bounds on the next-token distributions on text; each has a default by precision."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    perplexity_ratio: float | None = Field(None, ge=1, description="maximum perplexity, relative to the source model's")
    agreement: float | None = Field(
        None,
        ge=0,
        le=1,
        description="minimum share of tokens whose most likely next token is the source model's, on text and in "
        "greedy generations",
    )
    max_kl: float | None = Field(
        None,
        gt=0,
        description="maximum Kullback-Leibler divergence of any next-token distribution from the source model's, "
        "in nats",
    )

    def bounds(self, default: QualityBounds) -> QualityBounds:
        """Return the bounds, with defaults where the spec has none."""
        return default.model_copy(update=self.model_dump(exclude_none=True))


class DraftFields(BaseModel):
    """A smaller decoder that drafts tokens, which the decoder checks several at a time."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(
        min_length=1,
        description="decoder with the vocabulary of `model`: a Hugging Face id, or a folder as of `model`",
    )
    revision: str | None = Field(None, description="branch, tag or commit of a Hugging Face id")
    precision: Literal["fp32", "bf16", "int8", "int4", "auto"] = Field(
        "auto",
        description="weights of its linear layers, which change only how many drafts are accepted; auto: the fastest "
        "of bf16 and int8 for one generation",
    )
    tokens: int = Field(5, ge=1, le=MOST_DRAFTED, description="maximum number of tokens of a draft")


class FloverSpec(ModelSpec):
    """A decoder, served by the `flover` backend, which batches its generations in every decode step."""

    model_config = ConfigDict(title="flover")

    kind: Literal["flover"]
    model: str = Field(
        min_length=1,
        description="GPT-2, GPT-J, GPT-NeoX, Llama, Mistral, Phi-3, Qwen2, Qwen3, Gemma 2, Gemma 3 (text) or OLMo 2 "
        "model: a Hugging Face id, or a folder in its format: absolute, or relative to the spec file (begin it with ./ "
        "or ../ to get an error if it is missing)",
    )
    revision: str | None = Field(None, description="branch, tag or commit of a Hugging Face id")
    max_concurrency: int = Field(16, ge=1, le=1024, description="maximum number of concurrent generations (slots)")
    max_length: int | None = Field(
        None,
        ge=8,
        description="maximum length of a prompt with its generated tokens; default: the model's own limit (with rotary "
        f"positions scaled by longrope, the length of training), at most {LONGEST_DEFAULT}",
    )
    engine: Literal["torch"] = Field("torch", description="engine to run on")
    device: Literal["auto", "cpu", "gpu"] = Field(
        "auto", description="device to run on; auto: a GPU if this machine has one"
    )
    precision: Literal["fp32", "bf16", "int8", "int4", "auto"] = Field(
        "fp32",
        description="weights of linear layers; attention on a CPU is always computed in fp32; int8 and int4 require "
        "the native kernels of a CPU; auto: the fastest of fp32, bf16 and int8 within the tolerance and bounds",
    )
    group_size: Literal[32, 64, 128] = Field(
        64, description="int4: number of inputs of a weight that share a scale; fewer are more accurate and larger"
    )
    kv_cache_dtype: KeyValueType = Field(
        "auto",
        description="type of keys and values; auto: float32 with fp32, bfloat16 with other precisions; int8: 8 bits "
        "with a scale for each token and head, within the tolerance and bounds of int8; it requires the native kernels "
        "of a CPU",
    )
    kv_cache_mb: float | None = Field(
        None,
        gt=0,
        le=1e7,
        description="largest size of keys and values in memory, in MiB, which all slots share: at least that of one "
        "slot of max_length tokens; default: the free memory at load less a reserve, at most that of full slots; on a "
        "GPU it limits the number of slots",
    )
    draft: DraftFields | None = Field(
        None,
        description="smaller decoder that drafts tokens where that is measured to pay: `model`, `revision`, "
        "`precision` and `tokens`; it changes texts by rounding only; it requires the native kernels of a CPU or a GPU",
    )
    tolerance: float | None = Field(
        None,
        gt=0,
        description="maximum difference of any logit from the source model's, in standard deviations of its logits; "
        "default: " + ", ".join(f"{value:g} for {name}" for name, value in DEFAULT_TOLERANCE.items()),
    )
    quality: QualityFields = Field(
        QualityFields(),
        description="bounds on the next-token distributions on text: `perplexity_ratio`, `agreement` and `max_kl`",
    )
    threads: int | None = Field(None, ge=1, description="CPU threads; default: all cores")
    profile_seconds: float = Field(
        60.0, gt=0, le=3600, description="seconds after which no further profiling round starts; two are always made"
    )
    samples: Path | None = Field(
        None,
        description="text file, one prompt per line, for verification; relative to the spec file; default: generated "
        "English text",
    )

    def largest_error(self, precision: str) -> float:
        """Maximum difference of any logit from the source model's, with a precision."""
        return self.tolerance or default_tolerance(precision, self.kv_cache_dtype)

    def least_match(self, precision: str) -> float:
        """Minimum share of greedy tokens that equal the source's, with a precision."""
        given = self.quality.agreement
        return least_match(precision, self.kv_cache_dtype) if given is None else given
