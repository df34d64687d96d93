"""Task folders of a model, `<model>/tasks/<task>/{task.json, task.safetensors}`: list, read, add and remove them.

A task is added and removed by one rename, so that a reader sees all of it or nothing. Files are not trusted: a task is
checked against its own hash and its base's digest here, and against the base's shapes by its system.
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
_RENAME_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2
_AT_FDCWD = -100  # AT_FDCWD

# Changes whenever a task is replaced or one of its files is written; cheap to compute.
Stamp = tuple[int, ...]
_Task = TypeVar("_Task")


def tasks_folder(model: Path) -> Path:
    """Return the folder of a model's tasks, which need not exist."""
    return model / TASKS_FOLDER


def scan(tasks: Path) -> dict[str, Stamp]:
    """Return the existing tasks by name, each with a stamp that changes with its files; reads no file."""
    stamps: dict[str, Stamp] = {}
    try:
        entries = list(os.scandir(tasks))
    except OSError:
        return {}
    for entry in entries:
        stamp = _stamp(entry.path) if is_task_name(entry.name) else None
        if stamp is not None:  # else not a task's folder, or one that is being removed
            stamps[entry.name] = stamp
    return dict(sorted(stamps.items()))


def scan_one(tasks: Path, name: str) -> Stamp | None:
    """Return the stamp of one task, as `scan` does; None if it does not exist."""
    return _stamp(os.fspath(tasks / name))


def read_task(tasks: Path, name: str, read: Callable[[Path], _Task]) -> _Task:
    """Read a task, again if it is replaced while it is read.

    Args:
        tasks: Folder of the model's tasks.
        name: Name of the task.
        read: Reads the task's folder.

    Returns:
        The result of `read`.

    Raises:
        InvalidArgument: There is no such task, or `read` refuses it; the message contains the reason.
    """
    check_task_name(name)
    while True:
        before = scan_one(tasks, name)
        if before is None:
            raise unknown_task(name, scan(tasks))
        try:
            return read(tasks / name)
        except TidalError as error:
            # If it was replaced meanwhile, its two files may be of different versions: read again.
            if scan_one(tasks, name) == before:
                raise InvalidArgument(f"task '{name}' is refused: {error}") from None


def check_base(record: TaskRecord, digest: str) -> None:
    """Check that a task was made for a base model.

    Args:
        record: The task's `task.json`.
        digest: Digest of the base model.

    Raises:
        InvalidArgument: It was made for another base.
    """
    if record.base != digest:
        raise InvalidArgument(
            f"it was made for the base {record.base[:12]}…, and this model's base is {digest[:12]}…; import or train "
            "it again for this model"
        )


def read_content(folder: Path, record: TaskRecord, most: int) -> bytes:
    """Read the tensor file of a task and check it against its `task.json`.

    Args:
        folder: Folder of the task.
        record: The task's `task.json`.
        most: Maximum size of the file, in bytes.

    Raises:
        InvalidArgument: The file is missing, too large, or does not match its size or hash in `task.json`.
    """
    content = read_bounded(folder / TENSORS_FILE, most)
    if len(content) != record.tensors.bytes or hashlib.sha256(content).hexdigest() != record.tensors.sha256:
        raise InvalidArgument(
            f"{TENSORS_FILE} does not match its size and hash in {TASK_FILE}: it is damaged or of another task"
        )
    return content


def read_tensors(folder: Path, record: TaskRecord, most: int) -> dict[str, Array]:
    """Read the tensors of a task as read-only views; raises as `read_content`, and if the file is malformed."""
    return parse_tensors(read_content(folder, record, most), TENSORS_FILE)


def check_free(tasks: Path, name: str, *, replace: bool) -> None:
    """Check that a task can be added under a name.

    Args:
        tasks: Folder of the model's tasks.
        name: Name of the new task.
        replace: Whether an existing task may be replaced.

    Raises:
        InvalidArgument: The name is not accepted, or the task exists and `replace` is not set.
    """
    check_task_name(name)
    if (tasks / name).exists() and not replace:
        raise _name_taken(name)


def _name_taken(name: str) -> InvalidArgument:
    return InvalidArgument(f"task '{name}' already exists; use --replace to replace it, or another name")


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
    """Write a task's folder and make it visible in one step.

    Args:
        tasks: Folder of the model's tasks, see `tasks_folder`; created if needed.
        name: Name of the task, see `check_task_name`.
        record: The task's `task.json`.
        content: Content of the tensor file.
        read: Reads the folder as a server does; a task that it refuses is not added.
        replace: Whether an existing task may be replaced, which happens in one step.
        confirm: Called with the result of `read` before the task is visible; returns the `task.json` to store instead,
            for the same tensors. A task that it refuses is not added.

    Returns:
        The result of `read`.

    Raises:
        InvalidArgument: The name is not accepted or exists, or `read` or `confirm` refuses the task.
    """
    check_free(tasks, name, replace=replace)
    tasks.mkdir(parents=True, exist_ok=True)
    _clear_abandoned(tasks)
    staging = _staging_path(tasks)
    staging.mkdir()
    try:
        (staging / TENSORS_FILE).write_bytes(content)
        (staging / TASK_FILE).write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
        # Read it as a server does, before a server can see it.
        placed = read(staging)
        if confirm is not None:
            (staging / TASK_FILE).write_text(confirm(placed).model_dump_json(indent=1) + "\n", encoding="utf-8")
            placed = read(staging)
        move_task(staging, tasks, name, replace=replace)
    finally:
        _discard(staging)  # after a failure, or the task that was replaced
    return placed


def move_task(folder: Path, tasks: Path, name: str, *, replace: bool) -> None:
    """Make a complete folder of a task visible in one step.

    Args:
        folder: The folder, on the file system of `tasks`. It becomes the task that was replaced, if there was one.
        tasks: Folder of the model's tasks; created if needed.
        name: Name of the task.
        replace: Whether an existing task may be replaced.

    Raises:
        InvalidArgument: The task exists and `replace` is not set.
    """
    final = tasks / name
    tasks.mkdir(parents=True, exist_ok=True)
    sync_tree(folder)
    if not replace:
        try:
            folder.rename(final)  # fails if a non-empty folder exists
        except OSError:
            raise _name_taken(name) from None
    elif final.exists():
        _exchange(folder, final)
    else:
        folder.rename(final)
    sync(tasks)


def remove_task(tasks: Path, name: str) -> None:
    """Remove a task in one step, also one that is refused; queries that use it are still answered.

    Args:
        tasks: Folder of the model's tasks.
        name: Name of the task.

    Raises:
        NotFound: There is no such task; names similar ones.
    """
    if not is_task_name(name) or not (tasks / name).is_dir():
        raise NotFound(str(unknown_task(name, scan(tasks))))
    leaving = _staging_path(tasks)
    (tasks / name).rename(leaving)
    _discard(leaving)


def _discard(path: Path) -> None:
    """Remove a folder, or a link to a folder without its target."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def _exchange(staging: Path, final: Path) -> None:
    """Swap two folders in one step; without support by the system, the name is free for an instant."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if (
        rename is not None
        and rename(_AT_FDCWD, os.fsencode(staging), _AT_FDCWD, os.fsencode(final), _RENAME_EXCHANGE) == 0
    ):
        return
    leaving = _staging_path(final.parent)
    final.rename(leaving)
    staging.rename(final)
    _discard(leaving)


def _staging_path(tasks: Path) -> Path:
    """Return an unused path in the folder of tasks that is not a valid task name."""
    return tasks / f"{STAGING_PREFIX}{uuid.uuid4().hex}"


def _clear_abandoned(tasks: Path) -> None:
    """Remove old staging folders of commands that were killed."""
    for path in tasks.glob(f"{STAGING_PREFIX}*"):
        with suppress(OSError):  # another command may remove it at the same time
            if time.time() - path.lstat().st_mtime > _ABANDONED_S:
                _discard(path)


def _stamp(folder: str) -> Stamp | None:
    """Stamp of both files: a folder that is copied by hand may get them in any order."""
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
