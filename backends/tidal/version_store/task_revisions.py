"""Tasks of shared models in a store.

    tasks/<model>/<task>/<revision>.json    the task's files, or that it was removed

A task is added, replaced and removed by its next revision; the last one holds.
"""

from __future__ import annotations

import re

from tidal.errors import InvalidArgument
from tidal.tasks.names import is_task_name
from tidal.version_store.store_files import StoreFiles
from tidal.version_store.stored_version import MAX_MANIFEST_BYTES, TaskRevision, is_version_number, parse_task

_PATH = re.compile(r"([^/]+)/([0-9]+)\.json", re.ASCII)


class TaskRevisions:
    """Revisions of tasks. What was read once is kept: it never changes.

    Args:
        files: Files of the store.
    """

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self._known: dict[str, TaskRevision] = {}

    def numbers(self, model: str) -> dict[str, list[int]]:
        """Numbers of the revisions of each task of a model, ascending."""
        found: dict[str, list[int]] = {}
        for path in self._files.paths(f"tasks/{model}"):
            match = _PATH.fullmatch(path)
            if match is not None and is_task_name(match[1]) and is_version_number(match[2]):
                found.setdefault(match[1], []).append(int(match[2]))
        return {name: sorted(numbers) for name, numbers in sorted(found.items())}

    def read(self, model: str, task: str, revision: int) -> TaskRevision:
        """A revision of a task.

        Raises:
            InvalidArgument: It is missing, or its document is refused.
        """
        path = _path(model, task, revision)
        if (known := self._known.get(path)) is not None:
            return known
        content = self._files.read_document(path, MAX_MANIFEST_BYTES)
        where = f"{self._files.uri}/{path}"
        if content is None:
            raise InvalidArgument(f"{where} is missing: it was listed, and a store's documents are not to be removed")
        found = parse_task(content, where)
        if (found.model, found.name, found.revision) != (model, task, revision):
            raise InvalidArgument(f"{where} is revision {found.revision} of {found.title}, not of its own path")
        self._known[path] = found
        return found

    def create(self, revision: TaskRevision) -> bool:
        """Write a revision unless its number is taken; returns whether it is in the store now."""
        path, content = _path(revision.model, revision.name, revision.revision), revision.model_dump_json(indent=1)
        existing = self._files.create_document(path, content.encode(), MAX_MANIFEST_BYTES)
        return existing is None or existing == content.encode()


def _path(model: str, task: str, revision: int) -> str:
    return f"tasks/{model}/{task}/{revision}.json"
