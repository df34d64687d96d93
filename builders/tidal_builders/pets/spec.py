"""What a base for fine-tuned tasks is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tidal_builders.runtime_options import DEFAULT_TOLERANCE


class PetsSpec(BaseModel):
    """A frozen encoder that fine-tuned tasks share, served by the `pets` backend."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="pets")

    kind: Literal["pets"]
    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", description="the model's name in the repository")
    model: str = Field(
        min_length=1,
        description="the encoder that the tasks were fine-tuned from: a Hugging Face id, or a folder in its format: "
        "absolute, or relative to the spec file (begin it with ./ or ../ to be told when it is missing)",
    )
    revision: str | None = Field(None, description="branch, tag or commit of a Hugging Face id")
    max_length: int | None = Field(
        None, ge=8, description="longest input in tokens that is profiled and served; default: the model's own limit"
    )
    max_batch: int = Field(64, ge=1, le=1024, description="largest batch of short queries that is profiled and served")
    max_tokens: int = Field(
        2048, ge=8, description="tokens of the largest batch that is profiled and served, padding included"
    )
    threads: int | None = Field(None, ge=1, description="CPU threads; default: all cores")
    profile_seconds: float = Field(
        60.0, gt=0, le=3600, description="seconds after which no third round of measuring begins; two are always made"
    )
    tolerance: float = Field(
        DEFAULT_TOLERANCE["fp32"],
        gt=0,
        description="largest accepted difference of any component of the pooled vector from the source model's",
    )
    samples: Path | None = Field(
        None,
        description="text file, one text a line, to verify with; relative to the spec file; default: English text that "
        "the builder makes",
    )
    truncate: bool = Field(False, description="serve a longer text cut to the limit instead of refusing it")
