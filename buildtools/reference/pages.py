"""Markdown of a generated page, and the sentences that are written by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_NOTICE = "<!-- Generated from the code by `python -m buildtools.reference`. Do not edit. -->"
#: Backends with metrics and request options of their own.
SYSTEMS = ("arlo", "tabi", "pets", "otas", "flover", "nearest")
_NOTES = Path(__file__).with_name("notes.md")


def note(name: str) -> str:
    """The text below the heading `name` of notes.md; empty where there is none."""
    parts = re.split(r"^# (.+)$", _NOTES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True)).get(name, "").strip()


def page(title: str, purpose: str, *parts: str) -> str:
    """A page: its title, one sentence that says what it is for, and further parts."""
    return "\n\n".join([f"# {title}", _NOTICE, purpose, *filter(None, parts)]) + "\n"


def section(title: str, *parts: str) -> str:
    """A heading of the second level with what is below it."""
    return "\n\n".join([f"## {title}", *filter(None, parts)])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the last column, the meaning, begins with a capital letter."""
    sentences = [(*row[:-1], _capital(row[-1])) for row in rows]
    lines = [tuple(head), ("---",) * len(head), *sentences]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if re.match(r"[a-z]+\b(?![_:`(])", text) else text


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))
