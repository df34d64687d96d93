"""What the models of a repository are, for clients that list them: the document of `GET /models`."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from tidal.catalog.manifests import load_published
from tidal.errors import TidalError
from tidal.flover.chat import CHAT_FILE, ChatFormat
from tidal.server.model_facts import model_facts
from tidal.tasks.folder import Stamp, scan, tasks_folder
from tidal.tasks.record import TASK_FILE
from tidal.tensor_file import read_bounded

#: Engines and instances are read at most once in this many seconds.
FRESH_S: Final = 5.0
_MAX_JSON_BYTES: Final = 4 << 20


class ModelReport:
    """Describes the models of a repository from their manifests and tasks; any thread may use it.

    Files are read once and again when they change.

    Args:
        repository: Folder of the model repository.
        metrics_port: Port of the server's Prometheus endpoint.
        clock: Clock in seconds.
    """

    def __init__(self, repository: Path, metrics_port: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._repository, self._metrics_port, self._clock = repository, metrics_port, clock
        self._facts: dict[str, dict[str, Any]] = {}
        self._read_at = float("-inf")
        self._versions: dict[Path, dict[str, Any]] = {}
        self._tasks: dict[Path, tuple[Stamp, dict[str, Any] | None]] = {}
        self._lock = threading.Lock()

    def document(self, versions: Mapping[str, int]) -> dict[str, Any]:
        """Return the port of the metrics, and the description of all models by name under `models`.

        Args:
            versions: Version that serves, by model.
        """
        with self._lock:
            if self._clock() - self._read_at > FRESH_S:
                self._facts, self._read_at = self._read_facts(), self._clock()
            models = {name: self._model(name, versions.get(name)) for name in {**self._facts, **versions}}
            return {"metrics_port": self._metrics_port, "models": models}

    def _model(self, name: str, version: int | None) -> dict[str, Any]:
        folder = self._repository / name
        described: dict[str, Any] = {}
        if version is not None:
            path = folder / str(version)
            if path not in self._versions:
                self._versions[path] = _describe_version(path)
            described = self._versions[path]
        return {**self._facts.get(name, {}), **described, "tasks": self._describe_tasks(tasks_folder(folder))}

    def _read_facts(self) -> dict[str, dict[str, Any]]:
        """Read what all models have, those of other backends included."""
        return {
            each.name: {
                "backend": each.backend,
                "engine": each.engine,
                "precision": each.precision,
                "instances": each.instances,
                "max_length": each.max_length,
            }
            for each in model_facts(self._repository, None)
        }

    def _describe_tasks(self, folder: Path) -> dict[str, Any]:
        found = {}
        for name, stamp in scan(folder).items():
            known = self._tasks.get(folder / name)
            if known is None or known[0] != stamp:
                known = self._tasks[folder / name] = stamp, _describe_task(folder / name)
            if known[1] is not None:
                found[name] = known[1]
        return found


class _Record(BaseModel):
    """What the `task.json` of any system may have."""

    model_config = ConfigDict(extra="ignore")

    kind: str
    created: str
    head: str = ""
    labels: tuple[str, ...] = ()


def _describe_version(path: Path) -> dict[str, Any]:
    try:
        manifest: Any = load_published(path)
    except TidalError:  # a model of another kind, such as an ensemble
        return {}
    return {
        "kind": manifest.kind,
        "created": _seconds(manifest.created),
        "task": getattr(manifest, "task", None) or "",
        "labels": list(getattr(manifest, "labels", ())),
        "chat_template": _chat_template(path / CHAT_FILE),
    }


def _describe_task(folder: Path) -> dict[str, Any] | None:
    """Description of a task; None if it cannot be read, which the backend reports to its clients."""
    try:
        record = _Record.model_validate_json(read_bounded(folder / TASK_FILE, _MAX_JSON_BYTES))
    except (TidalError, ValidationError):
        return None
    return {
        "kind": record.kind,
        "created": _seconds(record.created),
        "task": record.head,
        "labels": list(record.labels),
    }


def _chat_template(path: Path) -> str | None:
    """Template that renders tools, where a model has several; None if it has none."""
    try:
        templates = ChatFormat.model_validate(json.loads(read_bounded(path, _MAX_JSON_BYTES))).templates
    except (TidalError, ValueError):
        return None
    return templates.get("tool_use") or templates.get("default")


def _seconds(text: str) -> int:
    """Seconds since 1970 of an ISO 8601 time; 0 if it is none."""
    try:
        return int(datetime.fromisoformat(text).timestamp())
    except ValueError:
        return 0
