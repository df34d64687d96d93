"""The record `task.json` of a base's task: its kind and origin, in addition to what every task's record has."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import Field

from tidal.manifest import Strict
from tidal.tasks.record import LabelledRecord, read_record


class AccuracyComparison(Strict):
    """Accuracy of a task and of the fine-tuned model that it was derived from, on labelled queries."""

    rows: int = Field(ge=1)
    accuracy: float = Field(ge=0, le=1)
    source_accuracy: float = Field(ge=0, le=1)


class AnswerComparison(Strict):
    """Answers of a stored task compared with those of the model that it was derived from."""

    source: str = Field(description="model that it was compared with")
    texts: int = Field(ge=1, description="texts that both models answered")
    labels: float = Field(ge=0, le=1, description="share of the texts with the same label")
    clear_labels: float = Field(ge=0, le=1, description="the same among texts whose two highest logits differ clearly")
    max_error: float = Field(
        ge=0, description="largest error of a logit, as a share of the largest logit if that is above 1"
    )
    tolerance: float = Field(
        gt=0, description="accepted error of a task that stores everything that the source changed"
    )
    agreement: float = Field(
        ge=0, le=1, description="the lesser of `labels` and 1 - the mean total variation distance of probabilities"
    )

    @property
    def exact(self) -> bool:
        """Whether the answers are equal up to rounding."""
        return self.max_error <= self.tolerance and self.clear_labels == 1

    def sentence(self) -> str:
        """Describe the figures for people, beginning with the source."""
        return (
            f"{self.source}: agreement {self.agreement:.1%}, {self.labels:.1%} of the labels on {self.texts} texts "
            f"agree, logits differ by up to {self.max_error:.2g} (accepted of an exact import: {self.tolerance:g})"
        )


class Provenance(Strict):
    """Origin of a task's parameters."""

    format: str = Field(description="origin: peft, adapterhub, checkpoint, or trained")
    source: str = Field(description="folder or model that the parameters are from")
    notes: tuple[str, ...] = Field((), description="decisions and omissions of the import")
    accuracy: AccuracyComparison | None = None
    answers: AnswerComparison | None = Field(None, description="answers compared with the source's; None: not compared")


class TaskInfo(LabelledRecord):
    """`task.json` of a task on a frozen encoder."""

    kind: str = Field(min_length=1, max_length=128)
    provenance: Provenance

    @property
    def fingerprint(self) -> str:
        """Hash of everything that the task's answers depend on; equal if the same task is added again."""
        parts = (self.base, *self.labels, self.tensors.sha256)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def read_task_info(folder: Path) -> TaskInfo:
    """Read and validate a task's `task.json`.

    Args:
        folder: Folder of the task.

    Raises:
        InvalidArgument: As `read_record`.
    """
    return read_record(folder, TaskInfo)
