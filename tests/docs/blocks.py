"""Code blocks of a Markdown page, with the heading above each and the mark that says how it is tested."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"(?:^<!-- ((?:not run|run by)[^>]*?) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.

    Attributes:
        page: Path of the page.
        line: Line at which its code begins.
        section: Heading of the second level above it.
        language: `sh`, `yaml`, `python`, or another one for output.
        text: Its content.
        mark: `not run: REASON`, `run by FILE`, or empty for a block that the tests of the documentation run.
    """

    page: Path
    line: int
    section: str
    language: str
    text: str
    mark: str

    def commands(self) -> list[str]:
        """Shell commands without their comments; a command may go on over lines, by a backslash or within quotes."""
        found: list[str] = []
        pending = ""
        for line in self.text.splitlines():
            pending += re.sub(r"(^|\s+)#.*$", "", line) if "'" not in pending else line
            if pending.endswith("\\"):
                pending = f"{pending[:-1].rstrip()} "
            elif pending.count("'") % 2:
                pending += "\n"
            elif pending.strip():
                found.append(pending.strip())
                pending = ""
            else:
                pending = ""
        return found

    def scripts(self) -> list[str]:
        """What runs in a shell of its own: the commands, or all of a block with a `case`."""
        return [self.text] if re.search(r"^case ", self.text, re.MULTILINE) else self.commands()

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """All blocks in the order of the page."""
    text = page.read_text(encoding="utf-8")
    headings = [(found.start(), found.group(1)) for found in _HEADING.finditer(text)]
    return [
        Block(
            page,
            text.count("\n", 0, found.start(3)) + 1,
            next((name for start, name in reversed(headings) if start < found.start()), ""),
            language=found.group(2),
            text=found.group(3),
            mark=found.group(1) or "",
        )
        for found in _BLOCK.finditer(text)
    ]
