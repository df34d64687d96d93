"""The result of one check of `tidal doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """The result of one check.

    Attributes:
        name: What was checked.
        verdict: `bad` prevents serving, `warning` may disturb it, `note` is for information.
        found: What was found.
        advice: What to do; may be empty.
    """

    name: str
    verdict: Literal["ok", "note", "warning", "bad"]
    found: str
    advice: str = ""
