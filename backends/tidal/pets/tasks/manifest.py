"""The record `task.json` of a base's task: its kind and origin, in addition to what every task's record has."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from tidal.encoder_tasks.entries import TaskName
from tidal.errors import InvalidArgument
from tidal.manifest import Strict
from tidal.pets.heads import check_head, head_outputs, head_rows
from tidal.pets.terms import Head
from tidal.pets.vocabulary import VocabularyForm, VocabularyHead
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
    measure: str = Field("argmax", description="measure of the task; argmax: share of equal labels")
    labels: float = Field(ge=0, le=1, description="agreement of the answers by this measure")
    clear_labels: float = Field(ge=0, le=1, description="the same among texts whose two highest logits differ clearly")
    max_error: float = Field(
        ge=0, description="largest error of a logit, as a share of the largest logit if that is above 1"
    )
    tolerance: float = Field(
        gt=0, description="accepted error of a task that stores everything that the source changed"
    )
    agreement: float = Field(
        ge=0,
        le=1,
        description="the same; of classifications the lesser of it and 1 - the mean total variation distance of "
        "probabilities",
    )

    @property
    def exact(self) -> bool:
        """Whether the answers are equal up to rounding."""
        return self.max_error <= self.tolerance and self.clear_labels == 1

    def sentence(self) -> str:
        """Describe the figures for people, beginning with the source."""
        how = "of the labels" if self.measure == "argmax" else f"by {self.measure}"
        return (
            f"{self.source}: agreement {self.agreement:.1%}, {self.labels:.1%} {how} on {self.texts} texts "
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
    head: TaskName = Field("classification", description="what the head's outputs mean: a task of encoders")
    settings: dict[str, Any] = Field(default_factory=dict, description="settings of the head")
    token_types: bool = Field(True, description="whether the task's texts have token types; if not, all are 0")
    vocabulary: VocabularyForm | None = Field(
        None, description="how the head scores the words of the vocabulary; null: it does not"
    )
    provenance: Provenance

    @model_validator(mode="after")
    def _check_head(self) -> TaskInfo:
        try:
            head = self.empty_head(1)
            weight, bias = np.zeros((head_rows(head), 1), np.float32), np.zeros(head_outputs(head), np.float32)
            check_head(replace(head, weight=weight, bias=bias), 1)
        except (InvalidArgument, KeyError) as error:
            raise ValueError(str(error)) from None
        return self

    def empty_head(self, width: int) -> Head:
        """The task's head without its values.

        Args:
            width: Size of the encoder's hidden states.
        """
        values = np.zeros((0, width), np.float32), np.zeros(0, np.float32)
        vocabulary = None if self.vocabulary is None else VocabularyHead.empty(self.vocabulary, width)
        return Head(*values, self.labels, self.head, self.settings, self.token_types, vocabulary)

    @property
    def fingerprint(self) -> str:
        """Hash of everything that the task's answers depend on; equal if the same task is added again."""
        parts = (self.base, *self.labels, self.tensors.sha256)
        if self.head != "classification":
            parts += (json.dumps([self.head, self.settings], sort_keys=True),)
        if self.vocabulary is not None:
            parts += (self.vocabulary.model_dump_json(),)
        if not self.token_types:
            parts += ("no token types",)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def read_task_info(folder: Path) -> TaskInfo:
    """Read and validate a task's `task.json`.

    Args:
        folder: Folder of the task.

    Raises:
        InvalidArgument: As `read_record`.
    """
    return read_record(folder, TaskInfo)
