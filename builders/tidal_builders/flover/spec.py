"""The spec of a decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field

from tidal_builders.spec import ModelSpec

# Maximum difference of any logit of the compared tokens, in standard deviations of the source's logits.
DEFAULT_TOLERANCE = {"fp32": 1e-3, "bf16": 0.25}
# Minimum share of tokens that equal the source's.
LEAST_MATCH = {"fp32": 1.0, "bf16": 0.9}
LONGEST_DEFAULT = 1024


class FloverSpec(ModelSpec):
    """A decoder, served by the `flover` backend, which batches its generations in every decode step."""

    model_config = ConfigDict(title="flover")

    kind: Literal["flover"]
    model: str = Field(
        min_length=1,
        description="GPT-2, GPT-J, GPT-NeoX, Llama, Qwen2 or Qwen3 model: a Hugging Face id, or a folder in its "
        "format: absolute, or relative to the spec file (begin it with ./ or ../ to get an error if it is missing)",
    )
    revision: str | None = Field(None, description="branch, tag or commit of a Hugging Face id")
    max_concurrency: int = Field(16, ge=1, le=1024, description="maximum number of concurrent generations (slots)")
    max_length: int | None = Field(
        None,
        ge=8,
        description="maximum length of a prompt with its generated tokens; default: the model's own limit, at most "
        f"{LONGEST_DEFAULT}",
    )
    engine: Literal["torch"] = Field("torch", description="engine to run on")
    device: Literal["auto", "cpu", "gpu"] = Field(
        "auto", description="device to run on; auto: a GPU if this machine has one"
    )
    precision: Literal["fp32", "bf16", "auto"] = Field(
        "fp32",
        description="arithmetic, except for attention on a CPU, which is always fp32; auto: the fastest within the "
        "tolerance",
    )
    tolerance: float | None = Field(
        None,
        gt=0,
        description="maximum difference of any logit from the source model's, in standard deviations of its logits; "
        "default: " + ", ".join(f"{value:g} for {name}" for name, value in DEFAULT_TOLERANCE.items()),
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
