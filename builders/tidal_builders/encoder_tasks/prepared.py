"""A source model that is prepared for a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """Fields of a spec that change what is made of a source model.

    Attributes:
        labels: Names of the labels; None for the model's own.
        pooling: Pooling of token vectors into one; None for the model's own.
        normalize: Whether vectors get a length of 1; None for the model's own.
        prompts: Texts in front of a query's text, by name; None for the model's own.
        default_prompt: Name of the prompt of requests that name none; None for the model's own.
        similarity: Function that compares two vectors; None for the model's own.
        max_answer_tokens: Maximum number of tokens of an answer to a question.
        impossible_answers: Whether a question may have no answer in its context.
    """

    labels: tuple[str, ...] | None = None
    pooling: str | None = None
    normalize: bool | None = None
    prompts: Mapping[str, str] | None = None
    default_prompt: str | None = None
    similarity: str | None = None
    max_answer_tokens: int = 15
    impossible_answers: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """A source model that is prepared for a task.

    Attributes:
        tail: Module that computes the engines' output from the model's: from its outputs and the attention mask
            [rows, length] to [rows, width], or [rows, length, width] if the task has values per token.
        width: Values of a row, or of a token.
        labels: Names of the labels; empty if the task has none.
        settings: Settings of the task for the manifest.
        max_length: Longest input that the task was trained for, in tokens; None for the model's own limit.
        mask_id: Id of the token that samples need in the place of some of theirs; None if they do not.
        lower_case: Whether texts are lowercased before they are tokenised.
    """

    tail: torch.nn.Module
    width: int
    labels: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    max_length: int | None = None
    mask_id: int | None = None
    lower_case: bool = False
