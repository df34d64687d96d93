"""Tasks beside a model, `<model>/tasks/<task>/{task.json, task.safetensors}`: listed, read, added and removed.

A task appears and leaves by one rename, so that a reader sees the whole task or none of it. Nothing that is read is
trusted: a task is held to its own hash, to its base's digest, and tensor by tensor to the base's shapes.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from tidal.errors import InvalidArgument, NotFound, TidalError
from tidal.manifest import FileRecord
from tidal.pets.kinds.kind import Storage, find_kind
from tidal.pets.kinds.stored import read_terms, write_terms
from tidal.pets.tasks.manifest import TASK_FILE, TENSORS_FILE, Provenance, TaskInfo, problems, read_task_info
from tidal.pets.tasks.names import check_task_name, is_task_name, unknown_task
from tidal.pets.tensor_file import pack_tensors, parse_tensors, read_bounded
from tidal.pets.terms import BaseLayers, TaskTerms
from tidal.repository import STAGING_PREFIX, sync, sync_tree

TASKS_FOLDER = "tasks"
# A task's file beyond twice the layers that it changes is no task's; classifiers come on top.
_BYTES_BESIDE = 64 << 20
_ABANDONED_S = 3600
_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2
_HERE = -100  # AT_FDCWD

# Changes whenever a task was replaced; cheap to take.
Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Task:
    """A task that was read and verified."""

    name: str
    info: TaskInfo
    terms: TaskTerms


def tasks_folder(model: Path) -> Path:
    """Where a model's tasks are, whether there is any or not."""
    return model / TASKS_FOLDER


def scan(tasks: Path) -> dict[str, Stamp]:
    """The tasks that are there, by name, each with a stamp that changes when its files do; reads no file."""
    found: dict[str, Stamp] = {}
    try:
        entries = list(os.scandir(tasks))
    except OSError:
        return {}
    for entry in entries:
        if not is_task_name(entry.name):
            continue
        try:
            status = os.stat(os.path.join(entry.path, TASK_FILE))
        except OSError:  # no task's folder, or one that is just leaving
            continue
        found[entry.name] = (status.st_ino, status.st_mtime_ns, status.st_size)
    return dict(sorted(found.items()))


def load_task(tasks: Path, name: str, base: BaseLayers) -> Task:
    """Read a task and hold it to its hash and to the base.

    Raises:
        InvalidArgument: there is no such task, or it is refused; says why.
    """
    check_task_name(name)
    while True:
        before = scan_one(tasks, name)
        if before is None:
            raise unknown_task(name, scan(tasks))
        try:
            info = read_task_info(tasks / name)
            return Task(name, info, read_task_terms(tasks / name, info, base))
        except TidalError as error:
            # Replaced between its two files: they are another task's now.
            if scan_one(tasks, name) == before:
                raise InvalidArgument(f"task '{name}' is refused: {error}") from None


def scan_one(tasks: Path, name: str) -> Stamp | None:
    """The stamp of one task, as `scan` gives it; None where there is none."""
    try:
        status = (tasks / name / TASK_FILE).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def read_task_terms(folder: Path, info: TaskInfo, base: BaseLayers) -> TaskTerms:
    """The terms that a task's folder holds.

    Raises:
        InvalidArgument: it was made for another base, its kind is unknown, or its file differs from what `task.json`
            says, is malformed or does not fit the base.
    """
    if info.base != base.digest:
        raise InvalidArgument(
            f"it was made for the base {info.base[:12]}…, this model's is {base.digest[:12]}…: import or train it anew "
            "for this one"
        )
    kind = find_kind(info.kind)
    path = folder / TENSORS_FILE
    content = read_bounded(path, _most_bytes(base, len(info.labels)))
    if len(content) != info.tensors.bytes or hashlib.sha256(content).hexdigest() != info.tensors.sha256:
        raise InvalidArgument(f"{TENSORS_FILE} differs from what {TASK_FILE} says: it is damaged, or not its own")
    return read_terms(kind, parse_tensors(content, TENSORS_FILE), info.labels, base)


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
) -> Task:
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

    Returns:
        The task as a server will read it, rounded if it is stored as float16.

    Raises:
        InvalidArgument: the name, the kind or a term is not accepted, or the name is taken.
    """
    check_task_name(name)
    content = pack_tensors(write_terms(find_kind(kind), terms, base, storage))
    try:
        info = TaskInfo(
            kind=kind,
            base=base.digest,
            labels=terms.head.labels,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            tensors=FileRecord(path=TENSORS_FILE, bytes=len(content), sha256=hashlib.sha256(content).hexdigest()),
            memory_bytes=terms.bytes,
            provenance=provenance,
        )
    except ValidationError as error:
        raise InvalidArgument(f"task '{name}' cannot be stored: {problems(error)}") from None
    return _place(tasks, name, info, content, base, replace)


def copy_task(tasks: Path, name: str, source: Path, base: BaseLayers, *, replace: bool = False) -> Task:
    """Add a task from a folder that holds one already; arguments and errors as `add_task`."""
    check_task_name(name)
    info = read_task_info(source)
    read_task_terms(source, info, base)
    content = read_bounded(source / TENSORS_FILE, _most_bytes(base, len(info.labels)))
    return _place(tasks, name, info, content, base, replace)


def remove_task(tasks: Path, name: str) -> None:
    """Take a task away at once, also one that is refused; queries that it is answering are still answered.

    Raises:
        NotFound: there is none of this name; names close ones.
    """
    if not is_task_name(name) or not (tasks / name).is_dir():
        raise NotFound(str(unknown_task(name, scan(tasks))))
    leaving = _aside(tasks)
    (tasks / name).rename(leaving)
    shutil.rmtree(leaving, ignore_errors=True)


def _place(tasks: Path, name: str, info: TaskInfo, content: bytes, base: BaseLayers, replace: bool) -> Task:
    final = tasks / name
    taken = InvalidArgument(f"task '{name}' is there already; replace it by --replace, or give another name")
    if final.exists() and not replace:
        raise taken
    tasks.mkdir(parents=True, exist_ok=True)
    _clear_abandoned(tasks)
    staging = _aside(tasks)
    staging.mkdir()
    try:
        (staging / TENSORS_FILE).write_bytes(content)
        (staging / TASK_FILE).write_text(info.model_dump_json(indent=1) + "\n", encoding="utf-8")
        # Read as a server reads it, before a server sees it.
        placed = Task(name, info, read_task_terms(staging, info, base))
        sync_tree(staging)
        if not replace:
            try:
                staging.rename(final)  # never onto a folder that holds something
            except OSError:
                raise taken from None
        elif final.exists():
            _exchange(staging, final)
        else:
            staging.rename(final)
        sync(tasks)
    finally:
        shutil.rmtree(staging, ignore_errors=True)  # what is left of it: a failure's, or the task that was replaced
    return placed


def _exchange(staging: Path, final: Path) -> None:
    """Swap two folders in one step; where the system has none, the name is free for an instant between two."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is not None and rename(_HERE, os.fsencode(staging), _HERE, os.fsencode(final), _EXCHANGE) == 0:
        return
    leaving = _aside(final.parent)
    final.rename(leaving)
    staging.rename(final)
    shutil.rmtree(leaving, ignore_errors=True)


def _aside(tasks: Path) -> Path:
    """A name beside the tasks that is nobody's, and no task's."""
    return tasks / f"{STAGING_PREFIX}{uuid.uuid4().hex}"


def _clear_abandoned(tasks: Path) -> None:
    """Remove what commands that were killed left behind, long after."""
    for path in tasks.glob(f"{STAGING_PREFIX}*"):
        with suppress(OSError):  # another command clears too
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(path, ignore_errors=True)


def _most_bytes(base: BaseLayers, labels: int) -> int:
    weights = sum(layer.weight.size for layer in base.linear.values())
    return 2 * 4 * (weights + labels * base.width) + _BYTES_BESIDE
