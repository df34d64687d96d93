"""Shortening Triton's reasons for failed loads to one line."""

from __future__ import annotations

import re

_STATUS = re.compile(r"^(?:load failed for model .*? state: )?(?:Internal|Invalid argument|Unavailable|Not found): ")
_FRAME = re.compile(r"^  (/\S.*?\(\d+\)):", re.MULTILINE)
# Errors of Tidal are sentences for the operator; their class and source line add nothing.
_OWN_ERROR = re.compile(r"^(?:tidal\.errors\.)?(?:InvalidArgument|NotFound|Unsupported|Unavailable|Internal): ")


def sentence(reason: str) -> str:
    """Triton's reason for a failed load as one line: the error, and the line of a Python model that raised it."""
    text = _STATUS.sub("", reason.replace("\\n", "\n"))
    first = text.strip().splitlines()[0].rstrip(" ;") if text.strip() else "Triton gives no reason"
    own = _OWN_ERROR.sub("", first)
    frame = _FRAME.search(text)
    return own if own != first or frame is None else f"{first} at {frame.group(1)}"
