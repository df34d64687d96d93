"""Code blocks of a Markdown page, with the heading that each stands under."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block."""

    section: str
    #: `sh`, `yaml`, `python`, or empty for output.
    language: str
    text: str

    def commands(self) -> list[str]:
        """Shell commands without their comments, one per line."""
        lines = (re.sub(r"\s+#.*$", "", line).strip() for line in self.text.splitlines())
        return [line for line in lines if line and not line.startswith("#")]


def blocks_of(page: str) -> list[Block]:
    """All blocks in the order of the page."""
    headings = [(found.start(), found.group(1)) for found in _HEADING.finditer(page)]
    return [
        Block(
            section=next((name for start, name in reversed(headings) if start < found.start()), ""),
            language=found.group(1),
            text=found.group(2),
        )
        for found in _FENCE.finditer(page)
    ]
