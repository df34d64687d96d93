"""A base's tasks in their folders: read and held tensor by tensor to the base's shapes, added and copied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidal.pets.kinds.kind import find_kind
from tidal.pets.kinds.stored import read_terms, write_terms
from tidal.pets.tasks.manifest import Provenance, TaskInfo, read_task_info
from tidal.pets.terms import BaseLayers, TaskTerms
from tidal.tasks.folder import check_base, place_task, read_content, read_task, read_tensors
from tidal.tasks.names import check_task_name
from tidal.tasks.record import make_record
from tidal.tasks.stored import Storage
from tidal.tensor_file import pack_tensors

# A task's file beyond twice the layers that it changes is no task's; classifiers come on top.
_EXTRA_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class PetsTask:
    """A task that was read and verified."""

    name: str
    info: TaskInfo
    terms: TaskTerms

    @property
    def bytes(self) -> int:
        """What its terms take in memory."""
        return self.terms.bytes


def load_task(tasks: Path, name: str, base: BaseLayers) -> PetsTask:
    """Read a task and hold it to its hash and to the base.

    Raises:
        InvalidArgument: there is no such task, or it is refused; says why.
    """
    return read_task(tasks, name, lambda folder: _read(folder, name, base))


def read_task_terms(folder: Path, info: TaskInfo, base: BaseLayers) -> TaskTerms:
    """The terms that a task's folder holds.

    Raises:
        InvalidArgument: it was made for another base, its kind is unknown, or its file differs from what `task.json`
            says, is malformed or does not fit the base.
    """
    check_base(info, base.digest)
    kind = find_kind(info.kind)
    return read_terms(kind, read_tensors(folder, info, _max_bytes(base, len(info.labels))), info.labels, base)


def add_task(
    tasks: Path,
    name: str,
    kind: str,
    terms: TaskTerms,
    base: BaseLayers,
    provenance: Provenance,
    *,
    storage: Storage = Storage(),  # noqa: B008 - immutable
    replace: bool = False,
    verify: Callable[[PetsTask], Provenance] | None = None,
) -> PetsTask:
    """Write a task's folder and make it visible at once.

    Args:
        tasks: a model's, see `tasks_folder`; made if it is not there.
        name: see `check_task_name`.
        kind: of fine-tuning; it has to express the terms.
        terms: what the task changes.
        base: what they were made for.
        provenance: where they came from.
        storage: of the values.
        replace: whether a task of this name may be there; it is replaced without a moment between.
        hold: given the task as it was stored and read back, before it is visible: returns the provenance to store
            with it, or raises what it refuses, and then nothing is added.

    Returns:
        The task as a server will read it, rounded if it is stored as float16.

    Raises:
        InvalidArgument: the name, the kind or a term is not accepted, or the name is taken.
    """
    check_task_name(name)
    content = pack_tensors(write_terms(find_kind(kind), terms, base, storage))
    info = make_record(
        TaskInfo, name, content,
        kind=kind, base=base.digest, labels=terms.head.labels, memory_bytes=terms.bytes, provenance=provenance,
    )  # fmt: skip

    def confirm(task: PetsTask) -> TaskInfo:
        assert verify is not None
        return info.model_copy(update={"provenance": verify(task)})

    return place_task(
        tasks, name, info, content, lambda folder: _read(folder, name, base),
        replace=replace, confirm=confirm if verify is not None else None,
    )  # fmt: skip


def copy_task(tasks: Path, name: str, source: Path, base: BaseLayers, *, replace: bool = False) -> PetsTask:
    """Add a task from a folder that holds one already; arguments and errors as `add_task`."""
    check_task_name(name)
    info = read_task_info(source)
    read_task_terms(source, info, base)
    content = read_content(source, info, _max_bytes(base, len(info.labels)))
    return place_task(tasks, name, info, content, lambda folder: _read(folder, name, base), replace=replace)


def _read(folder: Path, name: str, base: BaseLayers) -> PetsTask:
    info = read_task_info(folder)
    return PetsTask(name, info, read_task_terms(folder, info, base))


def _max_bytes(base: BaseLayers, labels: int) -> int:
    weights = sum(layer.weight.size for layer in base.linear.values())
    return 2 * 4 * (weights + labels * base.width) + _EXTRA_BYTES
