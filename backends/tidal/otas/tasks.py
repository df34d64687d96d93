"""Parameters of a task: a head, prompts by γ, and accuracies by γ (OTAS §III-A, §IV).

`task.safetensors` contains `head.weight` [classes, width] and `head.bias` [classes]; for each γ with its own head
`head.<γ>.weight` and `head.<γ>.bias`; and for each γ above 0 `prompts.<γ>` [layers, γ, width].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from tidal.errors import InvalidArgument
from tidal.manifest import Strict
from tidal.otas.manifest import OtasManifest
from tidal.serving.classes import ClassScores, label_array
from tidal.tasks.folder import check_base, place_task, read_content, read_task, read_tensors
from tidal.tasks.record import LabelledRecord, make_record, read_record
from tidal.tensor_file import Array, pack_tensors

FloatArray = npt.NDArray[np.float32]

Share = Annotated[float, Field(ge=0, le=1)]
# Accepted size of a task's file beyond the model's own γ: its header, and prompts and heads for other γ.
_EXTRA_BYTES = 64 << 20
_LEAST_LABELS = 2


class OtasProvenance(Strict):
    """Origin of a task's parameters, and the data of its accuracies."""

    source: str = Field(description="folder or data that the task was made from")
    settings: dict[str, str] = Field(default_factory=dict, description="settings of its training; empty: unknown")
    profiled: int | None = Field(
        None, ge=1, description="labelled images that the accuracies were measured on; None: unknown"
    )


class OtasTaskRecord(LabelledRecord):
    """`task.json` of a task of a vision transformer."""

    kind: Literal["otas"] = "otas"
    accumulate: bool = Field(description="`accumulate` of the model that its prompts were trained for")
    accuracy: dict[int, Share] = Field(description="accuracy by γ, on images that were not used for training")
    provenance: OtasProvenance

    @model_validator(mode="after")
    def _check_classes(self) -> OtasTaskRecord:
        if len(self.labels) < _LEAST_LABELS:
            raise ValueError(f"labels: expected 2 labels or more, got {len(self.labels)}")
        return self


@dataclass(frozen=True, slots=True)
class Head:
    """A linear classifier of features.

    Attributes:
        weight: Weights, of shape [classes, width].
        bias: Biases, of shape [classes].
    """

    weight: FloatArray
    bias: FloatArray


@dataclass(frozen=True)
class TaskParameters:
    """Parameters that a task adds to the model.

    Attributes:
        labels: Labels of the classes.
        head: Head for every γ that is not in `heads`.
        heads: Heads of single γ.
        prompts: Prompts by γ, each of shape [layers, γ, width].
    """

    labels: tuple[str, ...]
    head: Head
    heads: Mapping[int, Head]
    prompts: Mapping[int, FloatArray]

    def logits(self, gamma: int, features: FloatArray) -> FloatArray:
        """Return logits [images, classes] for features [images, width] that were computed at γ."""
        head = self.heads.get(gamma, self.head)
        return np.asarray(features @ head.weight.T + head.bias, np.float32)

    def scores(self, gamma: int, features: FloatArray) -> ClassScores:
        """Return the scores of features [images, width] that were computed at γ."""
        return ClassScores(self.logits(gamma, features), self._label_array)

    @cached_property
    def _label_array(self) -> Array:
        return label_array(self.labels)

    @property
    def bytes(self) -> int:
        """Size in memory, in bytes."""
        return sum(array.nbytes for array in _arrays(self).values())


@dataclass(frozen=True, slots=True)
class OtasTask:
    """A task that has been read and checked against its model."""

    name: str
    record: OtasTaskRecord
    parameters: TaskParameters

    @property
    def accuracy(self) -> Mapping[int, float]:
        """Accuracy by γ, for all γ of the model and possibly others."""
        return self.record.accuracy

    @property
    def bytes(self) -> int:
        """Size of its parameters in memory, in bytes."""
        return self.parameters.bytes


def load_task(tasks: Path, name: str, manifest: OtasManifest) -> OtasTask:
    """Read a task from a model's folder of tasks, and check it against its hash and the model.

    Args:
        tasks: Folder of the model's tasks.
        name: Name of the task.
        manifest: Manifest of the model.

    Raises:
        InvalidArgument: There is no such task, or it is refused; the message contains the reason.
    """
    return read_task(tasks, name, partial(read_otas_task, name=name, manifest=manifest))


def read_otas_task(folder: Path, name: str, manifest: OtasManifest) -> OtasTask:
    """Read the task in a folder.

    Args:
        folder: Folder of the task.
        name: Name of the task.
        manifest: Manifest of the model.

    Raises:
        InvalidArgument: The task was made for other weights or another `accumulate`, lacks prompts or an accuracy for a
            γ of the model, or its file is damaged or does not fit.
    """
    record = read_record(folder, OtasTaskRecord)
    check_base(record, manifest.base)
    if manifest.gammas[-1] > 0 and record.accumulate != manifest.accumulate:
        raise InvalidArgument(
            f"its prompts were trained with accumulate {record.accumulate}, and the model has {manifest.accumulate}; "
            "train it again for this model"
        )
    if missing := [gamma for gamma in manifest.gammas if gamma not in record.accuracy]:
        raise InvalidArgument(f"it has no accuracy for γ {_listed(missing)}; the model runs {_listed(manifest.gammas)}")
    tensors = read_tensors(folder, record, _max_bytes(manifest, len(record.labels)))
    return OtasTask(name, record, parameters_of(tensors, record.labels, manifest))


def add_task(
    tasks: Path,
    name: str,
    parameters: TaskParameters,
    accuracy: Mapping[int, float],
    manifest: OtasManifest,
    provenance: OtasProvenance,
    *,
    replace: bool = False,
) -> OtasTask:
    """Write a task's folder and make it visible in one step (`Register_Task`, OTAS §IV).

    Args:
        tasks: Folder of the model's tasks, see `tidal.tasks.folder.tasks_folder`.
        name: Name of the task, see `check_task_name`.
        parameters: Parameters for every γ of the model.
        accuracy: Accuracy for every γ of the model.
        manifest: Manifest of the model.
        provenance: Origin of the parameters.
        replace: Whether an existing task may be replaced.

    Raises:
        InvalidArgument: The name is not accepted or exists, or the task does not fit the model; contains the reason.
    """
    content = pack_tensors(_arrays(parameters))
    record = make_record(
        OtasTaskRecord,
        name,
        content,
        base=manifest.base,
        labels=parameters.labels,
        memory_bytes=parameters.bytes,
        accumulate=manifest.accumulate,
        accuracy=dict(accuracy),
        provenance=provenance,
    )
    return place_task(
        tasks, name, record, content, partial(read_otas_task, name=name, manifest=manifest), replace=replace
    )


def copy_task(tasks: Path, name: str, source: Path, manifest: OtasManifest, *, replace: bool = False) -> OtasTask:
    """Add a copy of the task in another folder, with its accuracies; arguments and errors as `add_task`."""
    record = read_record(source, OtasTaskRecord)
    read_otas_task(source, name, manifest)
    content = read_content(source, record, _max_bytes(manifest, len(record.labels)))
    return place_task(
        tasks, name, record, content, partial(read_otas_task, name=name, manifest=manifest), replace=replace
    )


def parameters_of(tensors: Mapping[str, Array], labels: tuple[str, ...], manifest: OtasManifest) -> TaskParameters:
    """Make a task's parameters for every γ of a model from the tensors of its file.

    Args:
        tensors: Tensors by name, see the module.
        labels: Labels of the classes.
        manifest: Manifest of the model.

    Raises:
        InvalidArgument: A tensor is missing, of another shape or type, or not finite.
    """
    left = dict(tensors)
    classes, width = len(labels), manifest.width

    def take(name: str, *shape: int) -> FloatArray:
        array = left.pop(name, None)
        if array is None:
            raise InvalidArgument(f"it has no tensor '{name}', which the model requires")
        if array.shape != shape or array.dtype.kind != "f":
            raise InvalidArgument(
                f"its tensor '{name}' has type {array.dtype} and shape {array.shape}; this model requires a float "
                f"tensor of shape {shape}"
            )
        values = np.asarray(array, np.float32)
        if not np.isfinite(values).all():
            raise InvalidArgument(f"its tensor '{name}' has values that are not finite")
        return values

    def take_head(prefix: str) -> Head:
        return Head(take(f"{prefix}.weight", classes, width), take(f"{prefix}.bias", classes))

    head = take_head("head")
    heads = {gamma: take_head(f"head.{gamma}") for gamma in manifest.gammas if f"head.{gamma}.weight" in left}
    prompts = {gamma: take(f"prompts.{gamma}", manifest.layers, gamma, width) for gamma in manifest.gammas if gamma > 0}
    return TaskParameters(labels, head, heads, prompts)


def _arrays(parameters: TaskParameters) -> dict[str, FloatArray]:
    """Return all arrays by their names in the file."""
    heads = {"head": parameters.head, **{f"head.{gamma}": head for gamma, head in parameters.heads.items()}}
    arrays = {f"prompts.{gamma}": prompts for gamma, prompts in parameters.prompts.items()}
    for name, head in heads.items():
        arrays |= {f"{name}.weight": head.weight, f"{name}.bias": head.bias}
    return arrays


def _max_bytes(manifest: OtasManifest, classes: int) -> int:
    heads = (1 + len(manifest.gammas)) * classes * (manifest.width + 1)
    prompts = sum(gamma for gamma in manifest.gammas if gamma > 0) * manifest.layers * manifest.width
    return 4 * (heads + prompts) + _EXTRA_BYTES


def _listed(gammas: Iterable[int]) -> str:
    return ", ".join(map(str, gammas))
