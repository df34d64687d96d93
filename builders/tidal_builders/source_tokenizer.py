"""Writes a source model's fast tokenizer as it is published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_tokenizer(tokenizer: Any, path: Path) -> None:
    """Write a fast tokenizer's JSON without truncation and padding, which the server decides on.

    Args:
        tokenizer: Fast tokenizer of `transformers`.
        path: File to write; its folder is created if it is missing.
    """
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    content["truncation"] = content["padding"] = None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
