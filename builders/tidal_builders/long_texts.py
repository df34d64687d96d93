"""Options of specs about texts that exceed a model's limit."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from tidal.encoder_tasks.cutting import open_cutter


class LongTextOptions(BaseModel):
    """What a model of encoders does with long texts."""

    truncate: Literal[True, False, "stride"] = Field(
        False,
        description="false: refuse longer texts than the limit; true: truncate them; stride: read them in windows and "
        "merge the results (embedding, token-classification, question-answering; other tasks have no windows)",
    )
    stride: int | None = Field(
        None,
        ge=0,
        description="truncate: stride: tokens that consecutive windows have in common; default: 0 for embeddings, else "
        "128 or half of the limit if that is less",
    )


def check_long_texts(options: LongTextOptions, task: str, max_length: int) -> None:
    """Check that a model for a task can treat long texts as its spec says.

    Args:
        options: Fields of the spec.
        task: Name of the task.
        max_length: Longest input in tokens.

    Raises:
        InvalidArgument: The task has no windows, or `stride` does not fit `truncate` and the longest input.
    """
    open_cutter(task, max_length, options.truncate, options.stride)
