"""A decoder's tasks in their folders: read and held tensor by tensor to the decoder's form, added and copied.

`task.safetensors` holds, for every linear layer that a task changes, `<path>/down` [rank, inputs], `<path>/up`
[outputs, rank] and `<path>/scale` [1]; paths are those of `tidal.flover.tasks.layers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from tidal.errors import InvalidArgument, did_you_mean
from tidal.flover.manifest import GenerationVerification
from tidal.flover.models.form import DecoderForm
from tidal.flover.tasks.layers import Place, places
from tidal.manifest import Strict
from tidal.tasks.folder import check_base, place_task, read_content, read_task, read_tensors
from tidal.tasks.low_rank import LowRankDelta, read_low_rank, write_low_rank
from tidal.tasks.names import check_task_name
from tidal.tasks.record import TaskRecord, make_record, read_record
from tidal.tasks.stored import SEPARATOR, Storage, StoredTensors, by_layer
from tidal.tensor_file import Array, pack_tensors

# A task's file beyond what differences of full rank take is no task's.
_BYTES_BESIDE = 1 << 20


@dataclass(frozen=True, slots=True)
class DecoderBase:
    """What a task is made for.

    Attributes:
        digest: of the decoder's weights.
        form: of the decoder.
    """

    digest: str
    form: DecoderForm


class FloverProvenance(Strict):
    """Where a task's parameters came from."""

    source: str = Field(description="folder")
    notes: tuple[str, ...] = Field((), description="what was decided or left out on the way")
    held: GenerationVerification | None = Field(
        None, description="how far the stored task is from peft's generations; None: not compared"
    )


class FloverTaskRecord(TaskRecord):
    """`task.json` of a task of a decoder."""

    kind: Literal["lora"] = "lora"
    provenance: FloverProvenance


@dataclass(frozen=True, slots=True)
class FloverTask:
    """A task that was read and held to its decoder; `deltas` by the path of the linear layer."""

    name: str
    record: FloverTaskRecord
    deltas: Mapping[str, LowRankDelta]

    @property
    def bytes(self) -> int:
        """Memory that its values take."""
        return _bytes(self.deltas)


def load_task(tasks: Path, name: str, base: DecoderBase) -> FloverTask:
    """Read a task from a model's folder of tasks and hold it to its hash and to the decoder.

    Raises:
        InvalidArgument: there is no such task, or it is refused; says why.
    """
    return read_task(tasks, name, lambda folder: read_flover_task(folder, name, base))


def read_flover_task(folder: Path, name: str, base: DecoderBase) -> FloverTask:
    """The task that a folder holds.

    Raises:
        InvalidArgument: it was made for other weights, or its file is damaged or does not fit.
    """
    record = read_record(folder, FloverTaskRecord)
    check_base(record, base.digest)
    known = places(base.form)
    return FloverTask(name, record, _read_deltas(read_tensors(folder, record, _most_bytes(known)), known))


def add_task(
    tasks: Path,
    name: str,
    deltas: Mapping[str, LowRankDelta],
    base: DecoderBase,
    provenance: FloverProvenance,
    *,
    storage: Storage = Storage(),  # noqa: B008 - immutable
    replace: bool = False,
    hold: Callable[[FloverTask], FloverProvenance] | None = None,
) -> FloverTask:
    """Write a task's folder and make it visible at once.

    Args:
        tasks: a model's, see `tidal.tasks.folder.tasks_folder`.
        name: see `check_task_name`.
        deltas: by the path of the linear layer.
        base: what they were made for.
        provenance: where they came from.
        storage: of the values.
        replace: whether a task of this name may be there.
        hold: given the task as it was stored and read back, before it is visible: returns the provenance to store
            with it, or raises what it refuses, and then nothing is added.

    Returns:
        The task as a server will read it, rounded if it is stored as float16.

    Raises:
        InvalidArgument: the name is not accepted or taken, or a difference does not fit the decoder.
    """
    check_task_name(name)
    content = pack_tensors(_stored(deltas, storage))
    record = make_record(
        FloverTaskRecord, name, content, base=base.digest, memory_bytes=_bytes(deltas), provenance=provenance
    )

    def confirm(task: FloverTask) -> FloverTaskRecord:
        assert hold is not None
        return record.model_copy(update={"provenance": hold(task)})

    return place_task(
        tasks, name, record, content, lambda folder: read_flover_task(folder, name, base),
        replace=replace, confirm=confirm if hold is not None else None,
    )  # fmt: skip


def copy_task(tasks: Path, name: str, source: Path, base: DecoderBase, *, replace: bool = False) -> FloverTask:
    """Add a task from a folder that holds one already; arguments and errors as `add_task`."""
    check_task_name(name)
    record = read_flover_task(source, name, base).record
    content = read_content(source, record, _most_bytes(places(base.form)))
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


def _read_deltas(tensors: Mapping[str, Array], known: Mapping[str, Place]) -> dict[str, LowRankDelta]:
    deltas = {}
    for path, parts in sorted(by_layer(tensors).items()):
        if path not in known:
            nearest = did_you_mean(path[:200], known).partition(" accepted: ")[0]
            raise InvalidArgument(f"the decoder has no layer '{path[:200]}' for a task to change: {nearest[:200]}")
        of_layer = StoredTensors(path, parts)
        deltas[path] = read_low_rank(of_layer, known[path].outputs, known[path].inputs)
        if left := of_layer.left():
            raise of_layer.refuse(left[0][:80], "is none that LoRA has; accepted are down, up and scale")
    if not deltas:
        raise InvalidArgument("it changes no layer")
    return deltas


def _bytes(deltas: Mapping[str, LowRankDelta]) -> int:
    return sum(delta.down.nbytes + delta.up.nbytes for delta in deltas.values())


def _most_bytes(known: Mapping[str, Place]) -> int:
    full = sum((each.outputs + each.inputs) * min(each.outputs, each.inputs) for each in known.values())
    return 4 * full + _BYTES_BESIDE
