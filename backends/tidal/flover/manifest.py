"""Manifest of a published decoder: architecture, weights, capacity and profile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tidal.flover.form import DecoderForm, KeyValueType
from tidal.flover.native.tiling import KernelChoice
from tidal.manifest import Published, Source, Strict, read_manifest
from tidal.profiles import LatencyProfile

ENGINE_FOLDER = "engines"
WEIGHTS_FILE = f"{ENGINE_FOLDER}/weights.safetensors"
DRAFT_FILE = f"{ENGINE_FOLDER}/draft.safetensors"
TOKENIZER_FILE = "tokenizer/tokenizer.json"


class GenerationVerification(Strict):
    """Deviation of the decoder from the unmodified source model in float32, as `transformers` runs it.

    Compared are the logits after every token that the source generates greedily. If the most likely token is the same
    everywhere, greedy generation is the same.
    """

    prompts: int = Field(ge=1)
    tokens: int = Field(ge=1, description="number of tokens compared, of all prompts, without ties")
    matched: int = Field(ge=0, description="number of these whose most likely token is the source's")
    ties: int = Field(ge=0, description="number of tokens left out, whose two best logits are almost equal")
    max_error: float = Field(ge=0, description="largest difference of a logit, in standard deviations of the source's")
    tolerance: float = Field(gt=0)

    @property
    def match_rate(self) -> float:
        """Share of tokens that match the source."""
        return self.matched / self.tokens


FloverPrecision = Literal["fp32", "bf16", "int8", "int4"]
# Bits of the weights of linear layers, where they are integers.
INTEGERS: Mapping[FloverPrecision, int] = {"int8": 8, "int4": 4}


class QualityBounds(Strict):
    """What the next-token distributions of a decoder must keep, on text, to be published."""

    perplexity_ratio: float = Field(gt=0, description="largest perplexity, relative to the source's")
    agreement: float = Field(
        ge=0, le=1, description="least share of tokens whose most likely next token is the source's"
    )
    max_kl: float = Field(
        gt=0, description="largest Kullback-Leibler divergence of a next-token distribution from the source's, in nats"
    )


class TextVerification(Strict):
    """Next-token distributions after the tokens of texts, compared with those of the source model in float32."""

    tokens: int = Field(ge=1, description="number of distributions compared")
    perplexity: float = Field(gt=0, description="of the decoder, on these tokens")
    perplexity_ratio: float = Field(gt=0, description="relative to the source's perplexity")
    agreement: float = Field(ge=0, le=1, description="share of distributions with the source's most likely token")
    max_kl: float = Field(ge=0, description="largest divergence from the source's distribution, in nats")
    bounds: QualityBounds = Field(description="accepted values")


class FloverTrial(Strict):
    """A precision compared by the builder on this device."""

    precision: FloverPrecision
    step_ms: float | None = Field(description="duration of a decode step of all slots, mean over lengths")
    max_error: float = Field(ge=0, description="as in the verification")
    match_rate: float = Field(ge=0, le=1)
    text: TextVerification | None = Field(None, description="as in the manifest")
    verdict: Literal["chosen", "slower", "misses tolerance"]


class FloverProfile(BaseModel):
    """Durations of passes on the serving device."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step: LatencyProfile = Field(
        description="duration of a decode step by attended tokens (as lengths) and slots of the window (as batches)"
    )
    chunk: LatencyProfile = Field(
        description="duration of prefilling a chunk of a prompt by position of its first token, from 1 (as lengths), "
        "and number of tokens (as batches)"
    )


class DraftManifest(Strict):
    """Smaller decoder of a version, which drafts tokens for the other one."""

    source: Source
    precision: FloverPrecision
    form: DecoderForm
    group_size: int | None = Field(None, description="as of the decoder")
    tokens: int = Field(ge=1, description="most tokens of a draft")
    max_length: int = Field(ge=2, description="number of tokens of a sequence up to which it drafts")
    memory_bytes: int = Field(ge=1, description="size of all slots' keys and values when they are full")
    agreement: float = Field(
        ge=0,
        le=1,
        description="share of the tokens of texts whose most likely next token is that of the decoder's source",
    )
    profile: FloverProfile


class FloverManifest(Published):
    """Manifest of a published version of a decoder."""

    kind: Literal["flover"]
    engine: Literal["torch"]
    base: str = Field(pattern=r"^[0-9a-f]{64}$", description="digest of the decoder's weights, which tasks refer to")
    form: DecoderForm
    eos_token_ids: tuple[int, ...] = Field(description="token ids that end a text; empty: only its length ends it")
    max_concurrency: int = Field(ge=1, description="number of slots: sequences with keys and values at the same time")
    max_length: int = Field(ge=2, description="number of tokens of a sequence, prompt and generated text together")
    memory_bytes: int = Field(ge=1, description="size of all slots' keys and values when they are full")
    kv_cache_mb: float | None = Field(
        None, gt=0, description="most MiB of keys and values; null: those of full slots, as far as memory is free"
    )
    threads: int = Field(ge=1, description="CPU threads")
    kernels: KernelChoice | None = Field(None, description="choices of the CPU kernels; null: not used")
    group_size: int | None = Field(
        None, description="int4: number of inputs that share a scale; null: another precision"
    )
    kv_cache_dtype: KeyValueType = Field(
        "auto", description="type of keys and values; auto: float32 with fp32, bfloat16 with other precisions"
    )
    verification: GenerationVerification
    text: TextVerification
    trials: tuple[FloverTrial, ...] = Field((), description="precisions compared by the builder")
    profile: FloverProfile
    draft: DraftManifest | None = Field(None, description="decoder that drafts tokens; null: none")

    @model_validator(mode="after")
    def _check(self) -> FloverManifest:
        if self.max_length > self.form.positions:
            raise ValueError(
                f"max_length is {self.max_length}, must be at most {self.form.positions}, the model's positions"
            )
        if self.profile.step.max_batch != self.max_concurrency or self.profile.step.max_length != self.max_length:
            raise ValueError("the profile must cover decode steps up to max_concurrency and max_length")
        if any(not 0 <= token < self.form.vocabulary for token in self.eos_token_ids):
            raise ValueError(f"eos_token_ids must be below {self.form.vocabulary}, got {self.eos_token_ids}")
        return self


def load_flover_manifest(version_dir: Path) -> FloverManifest:
    """Read and validate `manifest.json` of a version of a decoder.

    Args:
        version_dir: Folder of the version.

    Raises:
        InvalidArgument: The file is missing, invalid, or has a field that this release does not know.
    """
    return read_manifest(version_dir, FloverManifest)
