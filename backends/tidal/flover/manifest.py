"""What a published decoder holds: its form and weights, how much may run at once, and what steps cost."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tidal.flover.models.form import DecoderForm
from tidal.manifest import Published, Strict, read_manifest
from tidal.profiles import LatencyProfile

ENGINE_FOLDER = "engines"
WEIGHTS_FILE = f"{ENGINE_FOLDER}/weights.safetensors"
TOKENIZER_FILE = "tokenizer/tokenizer.json"


class GenerationVerification(Strict):
    """How far greedy generation is from the unmodified source model in float32, run by `transformers`."""

    prompts: int = Field(ge=1)
    tokens: int = Field(ge=1, description="that were compared, of all prompts")
    matched: int = Field(ge=0, description="of them equal; behind a prompt's first difference none counts")
    ties: int = Field(ge=0, description="prompts whose first difference was between all but equal logits; left out")
    max_abs_error: float = Field(ge=0, description="largest difference of any logit, on the source's own tokens")
    tolerance: float = Field(gt=0)

    @property
    def match_rate(self) -> float:
        """Share of tokens that are equal."""
        return self.matched / self.tokens


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
    form: DecoderForm
    eos_token_ids: tuple[int, ...] = Field(description="tokens that end a generation; none: only its length does")
    max_concurrency: int = Field(ge=1, description="slots: sequences that may hold keys and values at the same time")
    max_length: int = Field(ge=2, description="tokens of a sequence, prompt and generation together")
    memory_bytes: int = Field(ge=1, description="of all slots' keys and values, allocated when the model is loaded")
    threads: int = Field(ge=1, description="CPU threads")
    verification: GenerationVerification
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
