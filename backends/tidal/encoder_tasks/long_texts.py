"""Parameters in config.pbtxt about texts that exceed a model's limit."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field


def _truncate(value: object) -> object:
    """Accept the texts of config.pbtxt."""
    known = {"true": True, "false": False, "stride": "stride"}
    parsed = known.get(str(value).lower())
    if parsed is None:
        raise ValueError(f"expected true, false or stride, got {str(value)[:40]!r}")
    return parsed


class LongTextParameters(BaseModel):
    """What a model of encoders does with long texts; `tidal.encoder_tasks.cutting` cuts them."""

    truncate: Annotated[Literal[True, False, "stride"], BeforeValidator(_truncate)] = Field(
        False,
        description="what happens to texts that exceed the model's limit: false, they are refused; true, they are "
        "truncated; stride, they are read in windows, whose results are merged (embedding, token-classification, "
        "question-answering; other tasks have no windows)",
    )
    stride: int | None = Field(
        None,
        ge=0,
        description="tokens that consecutive windows have in common, with truncate: stride; default: 0 for embeddings, "
        "else 128 or half of the model's limit if that is less",
    )
