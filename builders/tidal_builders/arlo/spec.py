"""The spec of a text classifier."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field, field_validator

from tidal_builders.arlo.runtime_options import RuntimeOptions
from tidal_builders.spec import ModelSpec


class ArloSpec(RuntimeOptions, ModelSpec):
    """A text classifier, served by the `arlo` backend."""

    model_config = ConfigDict(title="arlo")

    kind: Literal["arlo"]
    model: str = Field(
        min_length=1,
        description="Hugging Face id, or a folder in its format: absolute, or relative to the spec file "
        "(begin it with ./ or ../ to get an error if the folder is missing)",
    )
    revision: str | None = Field(None, description="branch, tag or commit of a Hugging Face id")
    labels: tuple[str, ...] | None = Field(None, min_length=1, description="label names; default: the model's own")
    outputs: tuple[Literal["logits", "attention_received"], ...] = Field(
        ("logits",),
        description="outputs to serve; attention_received: for every token, the attention that it receives, summed "
        "over queries, heads and layers",
    )
    truncate: bool = Field(False, description="truncate longer texts to the limit instead of refusing them")

    @field_validator("outputs")
    @classmethod
    def _with_logits(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "logits" not in value or len(set(value)) != len(value):
            raise ValueError(f"expected logits and other outputs once each, got {list(value)}")
        return value
