"""Formats in which models write calls of tools: one entry per format."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One format: a JSON object per call, perhaps between two texts.

    Attributes:
        opening: Text before each call; empty: a text that begins with an object with the name of a tool is a call.
        closing: Text after each call.
        arguments: Member of the object that has the arguments; `name` has the name of the function.
        skipped: Texts at the beginning of an answer that are no part of it.
        marks: Texts that together occur in the chat templates of models with this format.
        foreign: Texts that occur in the chat templates of models with a similar format.
        array: Whether the objects of all calls are in one array.
        id_chars: Length of a call's id; 0: as OpenAI writes them. Some templates refuse others.
    """

    opening: str
    closing: str
    arguments: str
    skipped: tuple[str, ...]
    marks: tuple[str, ...]
    foreign: tuple[str, ...] = ()
    array: bool = False
    id_chars: int = 0

    def new_id(self) -> str:
        """Return an id for a call."""
        found = uuid.uuid4().hex
        return found[: self.id_chars] if self.id_chars else f"call_{found[:24]}"


#: All formats by name. A template is of the first format whose marks it has.
TOOL_FORMATS: Final[Mapping[str, ToolFormat]] = {
    # Hermes 2 Pro, Qwen 2.5, Qwen 3.
    "hermes": ToolFormat("<tool_call>", "</tool_call>", "arguments", (), ("<tool_call>", "</tool_call>")),
    # Llama 3.1 to 3.3.
    "llama3": ToolFormat("", "", "parameters", ("<|python_tag|>",), ('"parameters"', "ipython")),
    # Mistral 7B 0.3, Nemo, Mixtral 8x22B: later ones write [ARGS] after a name. The tokenizer's own text of the mark
    # is no part of an answer, since it is a special token.
    "mistral": ToolFormat(
        "",
        "",
        "arguments",
        ("[TOOL_CALLS]",),
        ("[TOOL_CALLS]", "[AVAILABLE_TOOLS]"),
        foreign=("[ARGS]",),
        array=True,
        id_chars=9,
    ),
}


def detect_format(template: str | None) -> ToolFormat | None:
    """Return the format that a chat template describes to the model; None if it is none of the known ones.

    Args:
        template: Jinja source of the template; None for none.
    """
    if template is None:
        return None
    return next(
        (
            each
            for each in TOOL_FORMATS.values()
            if all(mark in template for mark in each.marks) and not any(mark in template for mark in each.foreign)
        ),
        None,
    )
