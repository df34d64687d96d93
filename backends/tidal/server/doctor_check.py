"""The result of one check of `tidal doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """The result of one check.

    Attributes:
        name: Name of the check.
        verdict: `bad` prevents serving, `warning` may disturb it, `note` is for information.
        found: Result of the check.
        advice: Recommended action; may be empty.
    """

    name: str
    verdict: Literal["ok", "note", "warning", "bad"]
    found: str
    advice: str = ""
