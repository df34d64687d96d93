"""A base's tasks in their folders: read and checked tensor by tensor against the base's shapes, added and copied."""

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

# The largest accepted file of a task has twice the bytes of the layers that it may change, its classifier, and this.
_EXTRA_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class PetsTask:
    """A task that was read and verified.

    Attributes:
        name: Name of the task.
        info: Record of the task.
        terms: Terms of the task.
    """

    name: str
    info: TaskInfo
    terms: TaskTerms

    @property
    def bytes(self) -> int:
        """Memory of the task's terms in bytes."""
        return self.terms.bytes


def load_task(tasks: Path, name: str, base: BaseLayers) -> PetsTask:
    """Read a task, and check it against its hash and the base.

    Args:
        tasks: Folder of the model's tasks.
        name: Name of the task.
        base: Layers of the base.

    Raises:
        InvalidArgument: The task does not exist, or is refused; the message has the reason.
    """
    return read_task(tasks, name, lambda folder: _read(folder, name, base))


def read_task_terms(folder: Path, info: TaskInfo, base: BaseLayers) -> TaskTerms:
    """Read the terms of a task.

    Args:
        folder: Folder of the task.
        info: Record of the task.
        base: Layers of the base.

    Raises:
        InvalidArgument: The task was made for another base, its kind is unknown, or its file differs from its record,
            is malformed or does not fit the base.
    """
    check_base(info, base.digest)
    kind = find_kind(info.kind)
    return read_terms(kind, read_tensors(folder, info, _max_bytes(base, info)), info.empty_head(base.width), base)


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
    """Write a task's folder and make it visible atomically.

    Args:
        tasks: Folder of the model's tasks, see `tasks_folder`; it is created if it is missing.
        name: Name of the task, see `check_task_name`.
        kind: Kind of fine-tuning, which must be able to express the terms.
        terms: Terms of the task.
        base: Layers of the base that the task was made for.
        provenance: Origin of the terms.
        storage: Storage of the values.
        replace: Whether a task with this name may exist; it is then replaced atomically.
        verify: Called with the task as it was stored and read back, before it is visible. It returns the provenance to
            store, or raises an error, and then nothing is added. None: the task is not verified.

    Returns:
        The task as a server will read it, rounded if it is stored as float16.

    Raises:
        InvalidArgument: The name, the kind or a term is not accepted, or the name is taken.
    """
    check_task_name(name)
    content = pack_tensors(write_terms(find_kind(kind), terms, base, storage))
    head = terms.head
    info = make_record(
        TaskInfo, name, content,
        kind=kind, base=base.digest, head=head.task, settings=dict(head.settings), labels=head.labels,
        token_types=head.token_types, memory_bytes=terms.bytes, provenance=provenance,
        vocabulary=None if head.vocabulary is None else head.vocabulary.form,
    )  # fmt: skip

    def confirm(task: PetsTask) -> TaskInfo:
        assert verify is not None
        return info.model_copy(update={"provenance": verify(task)})

    return place_task(
        tasks, name, info, content, lambda folder: _read(folder, name, base),
        replace=replace, confirm=confirm if verify is not None else None,
    )  # fmt: skip


def copy_task(tasks: Path, name: str, source: Path, base: BaseLayers, *, replace: bool = False) -> PetsTask:
    """Add a task from a folder that holds a stored task.

    Args:
        tasks: Folder of the model's tasks.
        name: Name of the new task.
        source: Folder of the stored task.
        base: Layers of the base.
        replace: Whether a task with this name may exist; it is then replaced atomically.

    Raises:
        InvalidArgument: As `add_task`.
    """
    check_task_name(name)
    info = read_task_info(source)
    read_task_terms(source, info, base)
    content = read_content(source, info, _max_bytes(base, info))
    return place_task(tasks, name, info, content, lambda folder: _read(folder, name, base), replace=replace)


def _read(folder: Path, name: str, base: BaseLayers) -> PetsTask:
    info = read_task_info(folder)
    return PetsTask(name, info, read_task_terms(folder, info, base))


def _max_bytes(base: BaseLayers, info: TaskInfo) -> int:
    weights = sum(layer.weight.size for layer in base.linear.values())
    outputs = len(info.labels) if info.vocabulary is None else info.vocabulary.words
    return 2 * 4 * (weights + outputs * base.width) + _EXTRA_BYTES
