"""What a published decoder holds: its form and weights, how much may run at once, and what steps cost."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tidal.engines.base import Precision
from tidal.flover.models.form import DecoderForm
from tidal.manifest import Published, Strict, read_manifest
from tidal.profiles import LatencyProfile

ENGINE_FOLDER = "engines"
WEIGHTS_FILE = f"{ENGINE_FOLDER}/weights.safetensors"
TOKENIZER_FILE = "tokenizer/tokenizer.json"


class GenerationVerification(Strict):
    """How far the decoder is from the unmodified source model in float32, as `transformers` runs it.

    Compared are the logits behind every token of what the source generates greedily. If the same token is the
    likeliest everywhere, greedy generation is the same.
    """

    prompts: int = Field(ge=1)
    tokens: int = Field(ge=1, description="compared, of all prompts, without the ties")
    matched: int = Field(ge=0, description="of them those whose likeliest token is the source's")
    ties: int = Field(ge=0, description="tokens left out, because the source's two best logits are all but equal")
    max_error: float = Field(ge=0, description="largest difference of a logit, in standard deviations of the source's")
    tolerance: float = Field(gt=0)

    @property
    def match_rate(self) -> float:
        """Share of the tokens that are the source's."""
        return self.matched / self.tokens


class FloverTrial(Strict):
    """A precision that the builder measured on this device before it chose one."""

    precision: Precision
    step_ms: float | None = Field(description="of a step of all slots, mean over lengths; None: not measured")
    max_error: float = Field(ge=0, description="as in the verification")
    match_rate: float = Field(ge=0, le=1)
    verdict: Literal["chosen", "slower", "misses tolerance"]


class FloverProfile(BaseModel):
    """What passes cost on the device that serves them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step: LatencyProfile = Field(
        description="a decoding step by attended tokens (as lengths) and slots of the window (as batches)"
    )
    prefill: LatencyProfile = Field(description="reading so many tokens of one prompt, nothing before them")


class FloverManifest(Published):
    """A published version of a decoder that generates for many requests at once."""

    kind: Literal["flover"]
    engine: Literal["torch"]
    base: str = Field(pattern=r"^[0-9a-f]{64}$", description="digest of the decoder's weights: what tasks name")
    form: DecoderForm
    eos_token_ids: tuple[int, ...] = Field(description="tokens that end a generation; none: only its length does")
    max_concurrency: int = Field(ge=1, description="slots: sequences that may hold keys and values at the same time")
    max_length: int = Field(ge=2, description="tokens of a sequence, prompt and generation together")
    memory_bytes: int = Field(ge=1, description="of all slots' keys and values, allocated when the model is loaded")
    threads: int = Field(ge=1, description="CPU threads")
    verification: GenerationVerification
    trials: tuple[FloverTrial, ...] = Field((), description="precisions that were compared")
    profile: FloverProfile

    @model_validator(mode="after")
    def _check(self) -> FloverManifest:
        if self.max_length > self.form.positions:
            raise ValueError(f"max_length is {self.max_length}, the model has {self.form.positions} positions")
        if self.profile.step.max_batch != self.max_concurrency or self.profile.step.max_length != self.max_length:
            raise ValueError("the profile must cover steps to max_concurrency and max_length")
        if any(not 0 <= token < self.form.vocabulary for token in self.eos_token_ids):
            raise ValueError(f"eos_token_ids must be below {self.form.vocabulary}, got {self.eos_token_ids}")
        return self


def load_flover_manifest(version_dir: Path) -> FloverManifest:
    """Read and validate `manifest.json` of a version of a decoder.

    Raises:
        InvalidArgument: the file is missing, is not valid, or names a field that this release does not know.
    """
    return read_manifest(version_dir, FloverManifest)
