"""The result of a build, as data and as tables."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel
from rich.table import Table

Outcome = Literal["published", "current", "stale", "missed"]


class BuildReport(BaseModel):
    """Result of building one spec of any kind.

    Attributes:
        name: Name of the model.
        outcome: `published`: a new version exists; `current`: nothing had to be built; `stale`: a build is needed, and
            only a check was requested; `missed`: the result misses its tolerance or target and was not published.
        reasons: Why a version was or must be built, or what was missed; one clause each.
        version: Number of the newest version, if there is one.
        reused: Names of stages that an earlier, interrupted build had finished.
        warnings: Sentences to consider before relying on the model.
        seconds: Duration of the build.
    """

    name: str
    outcome: Outcome
    reasons: tuple[str, ...] = ()
    version: int | None = None
    reused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0

    def tables(self) -> list[Table]:
        """Measured values for the terminal."""
        return []

    def remarks(self) -> list[str]:
        """Sentences to print below the tables."""
        return []

    def parts(self) -> tuple[BuildReport, ...]:
        """Reports of models that were built as parts of this one."""
        return ()
