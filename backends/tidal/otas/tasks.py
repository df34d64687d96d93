"""A task's parameters beside a model: a head, prompts by γ, and what they were measured to achieve (OTAS §III-A, §IV).

`task.safetensors` holds `head.weight` [classes, width] and `head.bias` [classes]; where a γ has a head of its own also
`head.<γ>.weight` and `head.<γ>.bias`; and for every γ above 0 `prompts.<γ>` [layers, γ, width].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tidal.errors import InvalidArgument
from tidal.manifest import Strict
from tidal.otas.manifest import OtasManifest
from tidal.tasks.folder import check_base, place_task, read_content, read_task, read_tensors
from tidal.tasks.record import LabelledRecord, make_record, read_record
from tidal.tensor_file import Array, pack_tensors

FloatArray = npt.NDArray[np.float32]

Share = Annotated[float, Field(ge=0, le=1)]
# Of a task's file beyond what the model's own γ take: its header, and prompts and heads for other γ.
_BYTES_BESIDE = 64 << 20


class OtasProvenance(Strict):
    """Where a task's parameters came from, and what its accuracies were measured on."""

    source: str = Field(description="folder or data that it was made from")
    settings: dict[str, str] = Field(default_factory=dict, description="how it was trained; empty: not known")
    profiled: int | None = Field(None, ge=1, description="labelled images that the accuracies are over; None: unknown")


class OtasTaskRecord(LabelledRecord):
    """`task.json` of a task of a vision transformer."""

    kind: Literal["otas"] = "otas"
    accumulate: bool = Field(description="how its prompts were trained, see the model's manifest")
    accuracy: dict[int, Share] = Field(description="share of right answers by γ, on images that training did not see")
    provenance: OtasProvenance


@dataclass(frozen=True, slots=True)
class Head:
    """A linear classifier of features: weight [classes, width] and bias [classes]."""

    weight: FloatArray
    bias: FloatArray


@dataclass(frozen=True, slots=True)
class TaskParameters:
    """What a task adds to the model.

    Attributes:
        labels: of the classes.
        head: for every γ without one of its own.
        heads: by γ, of those with one of their own.
        prompts: by γ, [layers, γ, width] each.
    """

    labels: tuple[str, ...]
    head: Head
    heads: Mapping[int, Head]
    prompts: Mapping[int, FloatArray]

    def logits(self, gamma: int, features: FloatArray) -> FloatArray:
        """Of features [images, width] that the model gave at γ: [images, classes]."""
        head = self.heads.get(gamma, self.head)
        return np.asarray(features @ head.weight.T + head.bias, np.float32)

    @property
    def bytes(self) -> int:
        """Memory that it takes."""
        return sum(array.nbytes for array in _arrays(self).values())


@dataclass(frozen=True, slots=True)
class OtasTask:
    """A task that was read and held to its model."""

    name: str
    record: OtasTaskRecord
    parameters: TaskParameters

    @property
    def accuracy(self) -> Mapping[int, float]:
        """Share of right answers by γ, of all that the model has and perhaps others."""
        return self.record.accuracy

    @property
    def bytes(self) -> int:
        """Memory that its parameters take."""
        return self.parameters.bytes


def load_task(tasks: Path, name: str, manifest: OtasManifest) -> OtasTask:
    """Read a task from a model's folder of tasks and hold it to its hash and to the model.

    Raises:
        InvalidArgument: there is no such task, or it is refused; says why.
    """
    return read_task(tasks, name, partial(read_otas_task, name=name, manifest=manifest))


def read_otas_task(folder: Path, name: str, manifest: OtasManifest) -> OtasTask:
    """The task that a folder holds.

    Raises:
        InvalidArgument: it was made for other weights or another way of prompting, it lacks prompts or an accuracy
            for a γ of the model, or its file is damaged or does not fit.
    """
    record = read_record(folder, OtasTaskRecord)
    check_base(record, manifest.base)
    if manifest.gammas[-1] > 0 and record.accumulate != manifest.accumulate:
        raise InvalidArgument(
            f"its prompts were trained with accumulate {record.accumulate}, the model has {manifest.accumulate}: train "
            "it anew for this model"
        )
    if missing := [gamma for gamma in manifest.gammas if gamma not in record.accuracy]:
        raise InvalidArgument(f"it has no accuracy for γ {_listed(missing)}; the model runs {_listed(manifest.gammas)}")
    tensors = read_tensors(folder, record, _most_bytes(manifest, len(record.labels)))
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
    """Write a task's folder and make it visible at once (`Register_Task`, §IV).

    Args:
        tasks: a model's, see `tidal.tasks.folder.tasks_folder`.
        name: see `check_task_name`.
        parameters: for every γ of the model.
        accuracy: by γ, for every γ of the model.
        manifest: of the model.
        provenance: where the parameters came from.
        replace: whether a task of this name may be there.

    Raises:
        InvalidArgument: the name is not accepted or taken, or the task does not fit the model; says why.
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
    """Add a task from a folder that holds one already, with the accuracies it has; errors as `add_task`."""
    record = read_record(source, OtasTaskRecord)
    read_otas_task(source, name, manifest)
    content = read_content(source, record, _most_bytes(manifest, len(record.labels)))
    return place_task(
        tasks, name, record, content, partial(read_otas_task, name=name, manifest=manifest), replace=replace
    )


def parameters_of(tensors: Mapping[str, Array], labels: tuple[str, ...], manifest: OtasManifest) -> TaskParameters:
    """A task's parameters from the tensors of its file, see the module, for every γ of a model.

    Raises:
        InvalidArgument: a tensor is missing, of another shape or type, or not finite.
    """
    left = dict(tensors)
    classes, width = len(labels), manifest.width

    def take(name: str, *shape: int) -> FloatArray:
        array = left.pop(name, None)
        if array is None:
            raise InvalidArgument(f"it has no tensor '{name}', which the model asks for")
        if array.shape != shape or array.dtype.kind != "f":
            raise InvalidArgument(
                f"its tensor '{name}' is {array.dtype} of shape {array.shape}; for this model it has to be float of "
                f"shape {shape}"
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
    """All arrays by their names in the file."""
    heads = {"head": parameters.head, **{f"head.{gamma}": head for gamma, head in parameters.heads.items()}}
    arrays = {f"prompts.{gamma}": prompts for gamma, prompts in parameters.prompts.items()}
    for name, head in heads.items():
        arrays |= {f"{name}.weight": head.weight, f"{name}.bias": head.bias}
    return arrays


def _most_bytes(manifest: OtasManifest, classes: int) -> int:
    heads = (1 + len(manifest.gammas)) * classes * (manifest.width + 1)
    prompts = sum(gamma for gamma in manifest.gammas if gamma > 0) * manifest.layers * manifest.width
    return 4 * (heads + prompts) + _BYTES_BESIDE


def _listed(gammas: Iterable[int]) -> str:
    return ", ".join(map(str, gammas))
