"""The published versions of a cascade's levels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidal.arlo.manifest import load_arlo_manifest
from tidal.manifest import TokenizerInfo
from tidal_builders.tabi.plan import LevelPlan
from tidal_builders.tabi.task_levels import TaskLevel


@dataclass(frozen=True, slots=True)
class LevelVersion:
    """The version of a level's model that a cascade uses; fields as in `Level`."""

    folder: Path
    model: str
    fingerprint: str
    tokenizer: TokenizerInfo
    max_length: int
    attention: bool
    task: str | None = None

    @property
    def version(self) -> int:
        """Number of the version."""
        return int(self.folder.name)


def newest_version(planned: LevelPlan | TaskLevel) -> LevelVersion:
    """Return the newest version of a level's model, or of the encoder that its task belongs to.

    Args:
        planned: Level whose model has been built, or task of a published encoder.
    """
    if isinstance(planned, TaskLevel):
        base = planned.base
        return LevelVersion(
            planned.folder,
            planned.model,
            planned.info.fingerprint,
            base.tokenizer,
            base.max_length,
            planned.attention,
            planned.task,
        )
    folder = planned.plan.entry.latest()
    assert folder is not None
    built = load_arlo_manifest(folder)
    attention = any(output.name == "attention_received" for output in built.extra_outputs)
    return LevelVersion(folder, built.name, built.fingerprint, built.tokenizer, built.max_length, attention)
