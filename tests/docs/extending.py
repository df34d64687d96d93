"""Examples of docs/extending.md."""

from __future__ import annotations

from tests.docs.blocks import blocks_of
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "extending.md"


def examples(section: str) -> list[str]:
    found = [block.text for block in blocks_of(PAGE) if block.section == section and block.language == "python"]
    assert found
    return found
