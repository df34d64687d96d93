"""What `task.json` says of a base's task beside what any task's says: its kind, and where it came from."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import Field

from tidal.manifest import Strict
from tidal.tasks.record import LabelledRecord, read_record


class Kept(Strict):
    """How well a task answers beside the fine-tuned model that it was derived from, on labelled queries."""

    rows: int = Field(ge=1)
    accuracy: float = Field(ge=0, le=1)
    source_accuracy: float = Field(ge=0, le=1)


class Provenance(Strict):
    """Where a task's parameters came from."""

    format: str = Field(description="what they were imported from: peft, adapterhub, checkpoint; or trained")
    source: str = Field(description="folder or model")
    notes: tuple[str, ...] = Field((), description="what was decided or left out on the way")
    kept: Kept | None = None


class TaskInfo(LabelledRecord):
    """`task.json` of a task on a frozen encoder."""

    kind: str = Field(min_length=1, max_length=128)
    provenance: Provenance

    @property
    def fingerprint(self) -> str:
        """Hash over what its answers depend on; the same where the same task is added again."""
        parts = (self.base, *self.labels, self.tensors.sha256)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def read_task_info(folder: Path) -> TaskInfo:
    """Read and validate a task's `task.json`; raises as `read_record`."""
    return read_record(folder, TaskInfo)
