"""Tasks of shared models, from a repository into a store and from there into others, where running models find them.

A task changes without a new version of its model. So each change is a revision in the store, and a fetch brings the
last one. It changes only tasks that it knows: those whose content is one of the store's revisions.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from tidal.errors import InvalidArgument, Unavailable
from tidal.manifest import FileRecord, sha256_file
from tidal.tasks.folder import read_task, remove_task, scan, tasks_folder
from tidal.tasks.record import TASK_FILE, TENSORS_FILE
from tidal.version_store.contents import Contents
from tidal.version_store.fetch import WORK_FOLDER, only_fetch
from tidal.version_store.folder import describe_file
from tidal.version_store.store import VersionStore
from tidal.version_store.stored_version import StoredFile, TaskRevision
from tidal.version_store.transfers import Report
from tidal.version_store.upload import upload

# Of two publishers that change one task at once, each takes the next free number.
_MOST_TRIES = 20


class _NamedTensors(BaseModel):
    """What a `task.json` of any system has."""

    tensors: FileRecord


@dataclass(frozen=True, slots=True)
class PublishedTask:
    """What was done with one task.

    Attributes:
        model: Name of the model.
        task: Name of the task.
        state: Result of the call.
        uploaded_bytes: Bytes that were sent for it.
    """

    model: str
    task: str
    state: Literal["published", "published before", "removed"]
    uploaded_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FetchedTask:
    """Result of fetching one task.

    Attributes:
        model: Name of the model.
        task: Name of the task.
        state: Result of the call; `kept` where the repository's task is no revision of the store's.
    """

    model: str
    task: str
    state: Literal["fetched", "here before", "removed", "kept"]


def publish_tasks(
    store: VersionStore, repository: Path, models: Iterable[str], report: Report, *, remove: bool = False
) -> list[PublishedTask]:
    """Publish the tasks that models have in a repository.

    Args:
        store: The store.
        repository: Folder of the model repository.
        models: Names of the models.
        report: Called with the progress.
        remove: Whether tasks of the store that the repository does not have are removed.

    Raises:
        InvalidArgument: A task is damaged, or a document of the store is refused.
        Unavailable: The store failed; the next call continues.
    """
    done = []
    for model in models:
        folder = tasks_folder(repository / model)
        here, stored = scan(folder), store.tasks.numbers(model)
        for task in here:
            done.append(_publish_task(store, folder, model, task, stored.get(task, []), report))
        for task in sorted(stored.keys() - here.keys()) if remove else ():
            if store.tasks.read(model, task, stored[task][-1]).files:
                _create(store, model, task, stored[task], ())
                done.append(PublishedTask(model, task, "removed"))
    return done


def fetch_tasks(store: VersionStore, repository: Path, models: Sequence[str], report: Report) -> list[FetchedTask]:
    """Bring the tasks of models into a repository; a running model serves them without a reload.

    Args:
        store: The store.
        repository: Folder of the model repository.
        models: Names of models that it has.
        report: Called with the progress.

    Raises:
        InvalidArgument: A document or content of the store is refused; tasks before it are there.
        Unavailable: The store failed, or the repository cannot be written; the next call continues.
    """
    work = repository / WORK_FOLDER
    try:
        with only_fetch(repository):
            found = (
                _fetch_task(store, repository, model, task, numbers, report)
                for model in models
                for task, numbers in store.tasks.numbers(model).items()
            )
            try:
                return [each for each in found if each is not None]
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise Unavailable(f"{repository} cannot be written: {error}") from error


def _publish_task(
    store: VersionStore, folder: Path, model: str, task: str, numbers: Sequence[int], report: Report
) -> PublishedTask:
    if numbers and store.tasks.read(model, task, numbers[-1]).content == _content(folder / task):
        return PublishedTask(model, task, "published before")
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        files = read_task(folder, task, lambda source: _copied(source, copy))
        sent = upload(store, [(file, copy / file.path) for file in files], report)
    _create(store, model, task, numbers, files)
    return PublishedTask(model, task, "published", sum(sent.values()))


def _copied(source: Path, copy: Path) -> tuple[StoredFile, ...]:
    """Copy a task, which may be replaced meanwhile, and describe the copy.

    Raises:
        InvalidArgument: Its tensors are not those that its `task.json` names.
    """
    for name in (TASK_FILE, TENSORS_FILE):
        try:
            shutil.copyfile(source / name, copy / name)
        except OSError as error:
            raise InvalidArgument(f"{source / name} cannot be read: {error.strerror}") from None
        (copy / name).chmod((source / name).stat().st_mode)
    files = tuple(describe_file(copy / name, name) for name in (TASK_FILE, TENSORS_FILE))
    try:
        named = _NamedTensors.model_validate_json((copy / TASK_FILE).read_bytes()).tensors.sha256
    except ValidationError as error:
        raise InvalidArgument(f"{TASK_FILE} is not valid: {error.errors()[0]['msg']}") from None
    if named != files[1].sha256:
        raise InvalidArgument(f"{TENSORS_FILE} does not match its hash in {TASK_FILE}: it is damaged")
    return files


def _create(store: VersionStore, model: str, task: str, numbers: Sequence[int], files: tuple[StoredFile, ...]) -> None:
    """Write the next revision, or a later one where others publish at the same time: the last one holds."""
    first = numbers[-1] + 1 if numbers else 1
    for number in range(first, first + _MOST_TRIES):
        if store.tasks.create(TaskRevision(model=model, name=task, revision=number, files=files)):
            return
    raise Unavailable(f"{store.uri}: task '{task}' of model '{model}' is being changed by others: publish it again")


def _fetch_task(
    store: VersionStore, repository: Path, model: str, task: str, numbers: Sequence[int], report: Report
) -> FetchedTask | None:
    """Fetch a task, or remove it; None where it is removed already."""
    newest, folder = store.tasks.read(model, task, numbers[-1]), tasks_folder(repository / model)
    here = _content(folder / task)
    if here == newest.content:
        return FetchedTask(model, task, "here before") if here is not None else None
    if here is not None and here not in _contents(store, model, task, numbers):
        return FetchedTask(model, task, "kept")
    if not newest.files:
        remove_task(folder, task)
        return FetchedTask(model, task, "removed")
    contents = Contents(store, repository / WORK_FOLDER, report)
    contents.get(newest.named_files(), task)
    contents.place_task(repository, newest, replace=True)
    return FetchedTask(model, task, "fetched")


def _contents(store: VersionStore, model: str, task: str, numbers: Sequence[int]) -> Iterator[str | None]:
    """Contents that the store has of a task, the last one first."""
    for number in reversed(numbers):
        yield store.tasks.read(model, task, number).content


def _content(folder: Path) -> str | None:
    """Hash of a task's `task.json`, which has that of its tensors; None if there is no such task."""
    try:
        return sha256_file(folder / TASK_FILE)
    except OSError:
        return None
