"""What a decoder is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field

from tidal_builders.spec import ModelSpec

# Of all logits of all compared tokens the largest difference, in standard deviations of the source's logits.
DEFAULT_TOLERANCE = {"fp32": 1e-3, "bf16": 0.25}
# Least share of tokens that must be the source's.
LEAST_MATCH = {"fp32": 1.0, "bf16": 0.9}
LONGEST_DEFAULT = 1024


class FloverSpec(ModelSpec):
    """A decoder whose generations share every decoding step, served by the `flover` backend."""

    model_config = ConfigDict(title="flover")

    kind: Literal["flover"]
    model: str = Field(
        min_length=1,
        description="a GPT-2, GPT-J, GPT-NeoX, Llama, Qwen2 or Qwen3 model: a Hugging Face id, or a folder in its "
        "format: absolute, or relative to the spec file (begin it with ./ or ../ to be told when it is missing)",
    )
    revision: str | None = Field(None, description="branch, tag or commit of a Hugging Face id")
    max_concurrency: int = Field(16, ge=1, le=1024, description="generations that run at the same time: slots")
    max_length: int | None = Field(
        None,
        ge=8,
        description="tokens of a generation with its prompt, which a slot holds; default: the model's own limit, at "
        f"most {LONGEST_DEFAULT}",
    )
    engine: Literal["torch"] = Field("torch", description="engine to run it with")
    device: Literal["auto", "cpu", "gpu"] = Field(
        "auto", description="where it runs; auto: on the GPU if this machine has one"
    )
    precision: Literal["fp32", "bf16", "auto"] = Field(
        "fp32",
        description="arithmetic, but for attention on a CPU, which is fp32 always; auto takes the fastest that stays "
        "inside the tolerance",
    )
    tolerance: float | None = Field(
        None,
        gt=0,
        description="largest accepted difference of any logit from the source model's, in standard deviations of its "
        "logits; default: " + ", ".join(f"{value:g} for {name}" for name, value in DEFAULT_TOLERANCE.items()),
    )
    threads: int | None = Field(None, ge=1, description="CPU threads; default: all cores")
    profile_seconds: float = Field(
        60.0, gt=0, le=3600, description="seconds after which no third round of measuring begins; two are always made"
    )
    samples: Path | None = Field(
        None,
        description="text file, one prompt a line, to verify with; relative to the spec file; default: English text "
        "that the builder makes",
    )
