"""The Python stub processes of a server: one per instance of a model, and one more for a moment while a model loads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tidal.repository.config import instance_count
from tidal.server.installation import STUB_NAME

# Arguments of a stub: itself, the model's file, shared-memory region, …, the instance's name at 8.
_MODEL_FILE, _INSTANCE = 1, 8


@dataclass(frozen=True, slots=True)
class Stub:
    """A live stub process.

    Attributes:
        pid: Process id.
        model: Name of the model that it runs.
        version: Version of the model.
        instance: Name of the instance.
    """

    pid: int
    model: str
    version: int
    instance: str

    @property
    def completes_config(self) -> bool:
        """Whether it only completes the model's config, which means that a load is in progress."""
        return self.instance == self.model


def live_stubs(server_pid: int) -> frozenset[Stub]:
    """Running stubs of a server. A killed one is a zombie until the server detects it, and does not count."""
    try:
        children = psutil.Process(server_pid).children()
    except psutil.Error:
        return frozenset()
    stubs = set()
    for child in children:
        try:
            arguments = child.cmdline()
        except psutil.Error:
            continue
        if len(arguments) <= _INSTANCE or Path(arguments[0]).name != STUB_NAME:
            continue
        version_dir = Path(arguments[_MODEL_FILE]).parent
        if version_dir.name.isdigit():
            stubs.add(Stub(child.pid, version_dir.parent.name, int(version_dir.name), arguments[_INSTANCE]))
    return frozenset(stubs)


def wanted_instances(config: dict[str, Any]) -> int:
    """Number of stubs that a model's active config specifies; none for an ensemble."""
    return instance_count(config) if config.get("instance_group") else 0
