"""Folders of a decoder's tasks: read and checked against the decoder's architecture, added and copied.

`task.safetensors` contains, for every linear layer that a task changes, `<path>/down` [rank, inputs], `<path>/up`
[outputs, rank] and `<path>/scale` [1]; paths are those of `tidal.flover.tasks.layers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from tidal.errors import InvalidArgument, did_you_mean
from tidal.flover.form import DecoderForm
from tidal.flover.manifest import GenerationVerification
from tidal.flover.tasks.layers import LayerSlice, layer_slices
from tidal.manifest import Strict
from tidal.tasks.folder import check_base, place_task, read_content, read_task, read_tensors
from tidal.tasks.low_rank import LowRankDelta, read_low_rank, write_low_rank
from tidal.tasks.names import check_task_name
from tidal.tasks.record import TaskRecord, make_record, read_record
from tidal.tasks.stored import SEPARATOR, Storage, StoredTensors, by_layer
from tidal.tensor_file import Array, pack_tensors

# Allowance for names and header in the limit on the size of a task's file; the values take at most full rank.
_HEADER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class DecoderBase:
    """The decoder that a task is made for.

    Attributes:
        digest: Digest of the decoder's weights, hex SHA-256.
        form: Architecture of the decoder.
    """

    digest: str
    form: DecoderForm


class FloverProvenance(Strict):
    """Origin of a task's parameters."""

    source: str = Field(description="folder that the task was imported from")
    notes: tuple[str, ...] = Field((), description="decisions made and parts left out during the import")
    held: GenerationVerification | None = Field(
        None, description="deviation of the stored task from peft's generations; None: not compared"
    )


class FloverTaskRecord(TaskRecord):
    """`task.json` of a task of a decoder."""

    kind: Literal["lora"] = "lora"
    provenance: FloverProvenance


@dataclass(frozen=True, slots=True)
class FloverTask:
    """A task that was read and checked against its decoder.

    Attributes:
        name: Name of the task.
        record: Content of its `task.json`.
        deltas: Low-rank updates by the path of the linear layer.
    """

    name: str
    record: FloverTaskRecord
    deltas: Mapping[str, LowRankDelta]

    @property
    def bytes(self) -> int:
        """Size of its values in bytes."""
        return _bytes(self.deltas)


def load_task(tasks: Path, name: str, base: DecoderBase) -> FloverTask:
    """Read a task from a model's folder of tasks, and check it against its hash and the decoder.

    Args:
        tasks: Folder of the model's tasks.
        name: Name of the task.
        base: Decoder that the task must be made for.

    Raises:
        InvalidArgument: The task does not exist, or is not accepted; states the reason.
    """
    return read_task(tasks, name, lambda folder: read_flover_task(folder, name, base))


def read_flover_task(folder: Path, name: str, base: DecoderBase) -> FloverTask:
    """Read the task in a folder; arguments as `load_task`.

    Raises:
        InvalidArgument: The task was made for other weights, or its file is damaged or does not fit the decoder.
    """
    record = read_record(folder, FloverTaskRecord)
    check_base(record, base.digest)
    slices = layer_slices(base.form)
    return FloverTask(name, record, _read_deltas(read_tensors(folder, record, _max_bytes(slices)), slices))


def add_task(
    tasks: Path,
    name: str,
    deltas: Mapping[str, LowRankDelta],
    base: DecoderBase,
    provenance: FloverProvenance,
    *,
    storage: Storage = Storage(),  # noqa: B008 - immutable
    replace: bool = False,
    verify: Callable[[FloverTask], FloverProvenance] | None = None,
) -> FloverTask:
    """Write a task's folder and make it visible in one step.

    Args:
        tasks: Folder of the model's tasks, see `tidal.tasks.folder.tasks_folder`.
        name: Name of the task, see `check_task_name`.
        deltas: Low-rank updates by the path of the linear layer.
        base: Decoder that they were made for.
        provenance: Origin of the updates.
        storage: Storage format of the values.
        replace: Whether to replace an existing task of this name.
        verify: Called with the task as stored and read back, before it is visible; returns the provenance to store
            with it. If it raises, nothing is added.

    Returns:
        The task as a server will read it, rounded if it is stored as float16.

    Raises:
        InvalidArgument: The name is not accepted or already used, or an update does not fit the decoder.
    """
    check_task_name(name)
    content = pack_tensors(_stored(deltas, storage))
    record = make_record(
        FloverTaskRecord, name, content, base=base.digest, memory_bytes=_bytes(deltas), provenance=provenance
    )

    def confirm(task: FloverTask) -> FloverTaskRecord:
        assert verify is not None
        return record.model_copy(update={"provenance": verify(task)})

    return place_task(
        tasks, name, record, content, lambda folder: read_flover_task(folder, name, base),
        replace=replace, confirm=confirm if verify is not None else None,
    )  # fmt: skip


def copy_task(tasks: Path, name: str, source: Path, base: DecoderBase, *, replace: bool = False) -> FloverTask:
    """Add a task from a folder that contains a stored one; arguments and errors as `add_task`."""
    check_task_name(name)
    record = read_flover_task(source, name, base).record
    content = read_content(source, record, _max_bytes(layer_slices(base.form)))
    return place_task(
        tasks, name, record, content, lambda folder: read_flover_task(folder, name, base), replace=replace
    )


def _stored(deltas: Mapping[str, LowRankDelta], storage: Storage) -> dict[str, Array]:
    tensors = {}
    for path, delta in deltas.items():
        try:
            parts = write_low_rank(delta, storage)
        except InvalidArgument as error:
            raise InvalidArgument(f"layer '{path}' {error}") from None
        tensors.update({f"{path}{SEPARATOR}{part}": array for part, array in parts.items()})
    return tensors


def _read_deltas(tensors: Mapping[str, Array], slices: Mapping[str, LayerSlice]) -> dict[str, LowRankDelta]:
    deltas = {}
    for path, parts in sorted(by_layer(tensors).items()):
        if path not in slices:
            nearest = did_you_mean(path[:200], slices).partition(" accepted: ")[0]
            raise InvalidArgument(f"the decoder has no layer '{path[:200]}' that a task can change: {nearest[:200]}")
        of_layer = StoredTensors(path, parts)
        deltas[path] = read_low_rank(of_layer, slices[path].outputs, slices[path].inputs)
        if left := of_layer.left():
            raise of_layer.refuse(left[0][:80], "is not a tensor of LoRA; accepted are down, up and scale")
    if not deltas:
        raise InvalidArgument("the task changes no layer; accepted is at least one")
    return deltas


def _bytes(deltas: Mapping[str, LowRankDelta]) -> int:
    return sum(delta.down.nbytes + delta.up.nbytes for delta in deltas.values())


def _max_bytes(slices: Mapping[str, LayerSlice]) -> int:
    full = sum((each.outputs + each.inputs) * min(each.outputs, each.inputs) for each in slices.values())
    return 4 * full + _HEADER_BYTES
