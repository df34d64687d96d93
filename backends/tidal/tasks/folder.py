"""Tasks beside a model, `<model>/tasks/<task>/{task.json, task.safetensors}`: listed, read, placed and removed.

A task appears and leaves by one rename, so that a reader sees the whole task or none of it. Nothing that is read is
trusted: a task is held to its own hash and to its base's digest, and by its system to the base's shapes.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from tidal.errors import InvalidArgument, NotFound, TidalError
from tidal.repository.entries import STAGING_PREFIX, sync, sync_tree
from tidal.tasks.names import check_task_name, is_task_name, unknown_task
from tidal.tasks.record import TASK_FILE, TENSORS_FILE, TaskRecord
from tidal.tensor_file import Array, parse_tensors, read_bounded

TASKS_FOLDER = "tasks"
_ABANDONED_S = 3600
_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2
_HERE = -100  # AT_FDCWD

# Changes whenever a task was replaced or one of its files written; cheap to take.
Stamp = tuple[int, ...]
_Task = TypeVar("_Task")


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
        stamp = _stamp(entry.path) if is_task_name(entry.name) else None
        if stamp is not None:  # else it is no task's folder, or one that is just leaving
            found[entry.name] = stamp
    return dict(sorted(found.items()))


def scan_one(tasks: Path, name: str) -> Stamp | None:
    """The stamp of one task, as `scan` gives it; None where there is none."""
    return _stamp(os.fspath(tasks / name))


def read_task(tasks: Path, name: str, read: Callable[[Path], _Task]) -> _Task:
    """Read a task's folder by `read`, again where the task was replaced between its files.

    Raises:
        InvalidArgument: there is no such task, or `read` refuses it; says why.
    """
    check_task_name(name)
    while True:
        before = scan_one(tasks, name)
        if before is None:
            raise unknown_task(name, scan(tasks))
        try:
            return read(tasks / name)
        except TidalError as error:
            # Replaced between its two files: they are another task's now.
            if scan_one(tasks, name) == before:
                raise InvalidArgument(f"task '{name}' is refused: {error}") from None


def check_base(record: TaskRecord, digest: str) -> None:
    """Hold a task to its base's digest.

    Raises:
        InvalidArgument: it was made for another base.
    """
    if record.base != digest:
        raise InvalidArgument(
            f"it was made for the base {record.base[:12]}…, this model's is {digest[:12]}…: import or train it anew "
            "for this one"
        )


def read_content(folder: Path, record: TaskRecord, most: int) -> bytes:
    """The file of a task's tensors, as its `task.json` vouches for it, of at most `most` bytes.

    Raises:
        InvalidArgument: it is missing, too long, or differs from what `task.json` says.
    """
    content = read_bounded(folder / TENSORS_FILE, most)
    if len(content) != record.tensors.bytes or hashlib.sha256(content).hexdigest() != record.tensors.sha256:
        raise InvalidArgument(f"{TENSORS_FILE} differs from what {TASK_FILE} says: it is damaged, or not its own")
    return content


def read_tensors(folder: Path, record: TaskRecord, most: int) -> dict[str, Array]:
    """The tensors in it, as read-only views; raises as `read_content`, and where the file is malformed."""
    return parse_tensors(read_content(folder, record, most), TENSORS_FILE)


def check_free(tasks: Path, name: str, *, replace: bool) -> None:
    """Refuse a name under which no task can be added.

    Raises:
        InvalidArgument: it is not accepted, or is taken and `replace` is not set.
    """
    check_task_name(name)
    if (tasks / name).exists() and not replace:
        raise _taken(name)


def _taken(name: str) -> InvalidArgument:
    return InvalidArgument(f"task '{name}' is there already; replace it by --replace, or give another name")


def place_task(
    tasks: Path,
    name: str,
    record: TaskRecord,
    content: bytes,
    read: Callable[[Path], _Task],
    *,
    replace: bool,
    confirm: Callable[[_Task], TaskRecord] | None = None,
) -> _Task:
    """Write a task's folder and make it visible at once.

    Args:
        tasks: a model's, see `tasks_folder`; made if it is not there.
        name: see `check_task_name`.
        record: its `task.json`.
        content: of the file of its tensors.
        read: reads the folder as a server does; what it refuses is not placed.
        replace: whether a task of this name may be there; it is replaced without a moment between.
        confirm: given what `read` gave, before it is visible; returns the `task.json` to store instead, for the same
            tensors, and what it refuses is not placed.

    Returns:
        What `read` gives.

    Raises:
        InvalidArgument: the name is not accepted or taken, or `read` or `confirm` refuses the task.
    """
    final, taken = tasks / name, _taken(name)
    check_free(tasks, name, replace=replace)
    tasks.mkdir(parents=True, exist_ok=True)
    _clear_abandoned(tasks)
    staging = _aside(tasks)
    staging.mkdir()
    try:
        (staging / TENSORS_FILE).write_bytes(content)
        (staging / TASK_FILE).write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
        # Read as a server reads it, before a server sees it.
        placed = read(staging)
        if confirm is not None:
            (staging / TASK_FILE).write_text(confirm(placed).model_dump_json(indent=1) + "\n", encoding="utf-8")
            placed = read(staging)
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
        _discard(staging)  # what is left of it: a failure's, or the task that was replaced
    return placed


def remove_task(tasks: Path, name: str) -> None:
    """Take a task away at once, also one that is refused; queries that it is answering are still answered.

    Raises:
        NotFound: there is none of this name; names close ones.
    """
    if not is_task_name(name) or not (tasks / name).is_dir():
        raise NotFound(str(unknown_task(name, scan(tasks))))
    leaving = _aside(tasks)
    (tasks / name).rename(leaving)
    _discard(leaving)


def _discard(path: Path) -> None:
    """Remove a folder, or a link to one and not what it leads to."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def _exchange(staging: Path, final: Path) -> None:
    """Swap two folders in one step; where the system has none, the name is free for an instant between two."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is not None and rename(_HERE, os.fsencode(staging), _HERE, os.fsencode(final), _EXCHANGE) == 0:
        return
    leaving = _aside(final.parent)
    final.rename(leaving)
    staging.rename(final)
    _discard(leaving)


def _aside(tasks: Path) -> Path:
    """A name beside the tasks that is nobody's, and no task's."""
    return tasks / f"{STAGING_PREFIX}{uuid.uuid4().hex}"


def _clear_abandoned(tasks: Path) -> None:
    """Remove what commands that were killed left behind, long after."""
    for path in tasks.glob(f"{STAGING_PREFIX}*"):
        with suppress(OSError):  # another command clears too
            if time.time() - path.lstat().st_mtime > _ABANDONED_S:
                _discard(path)


def _stamp(folder: str) -> Stamp | None:
    """Of both files: a folder that is copied by hand gets its tensors after its `task.json`, or before."""
    stamp: Stamp = ()
    for name in (TASK_FILE, TENSORS_FILE):
        try:
            status = os.stat(os.path.join(folder, name))
        except OSError:
            if name == TASK_FILE:
                return None
            continue
        stamp += status.st_ino, status.st_mtime_ns, status.st_size
    return stamp
