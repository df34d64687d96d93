"""Fake controls of a server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidal.arlo.manifest import load_arlo_manifest
from tidal.errors import Internal
from tidal.repository.config import instance_count, read_config, served_versions
from tidal.repository.entries import ModelEntry
from tidal.repository.names import runtime_model
from tidal.server.control import ModelState, ServerControl


class Killed(BaseException):
    """The process that performs a change has been killed."""


@dataclass(frozen=True)
class ServingControl(ServerControl):
    """Serves the versions of the given config, and checks that every front has the runtimes that it calls."""

    address: str = ""
    repository: Path = Path()
    served: dict[str, list[int]] = field(default_factory=dict)
    instances: dict[str, int] = field(default_factory=dict)
    broken: set[tuple[str, int]] = field(default_factory=set)
    at_unload: list[Callable[[], None]] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    killed_at: list[int] = field(default_factory=list)
    watched: set[str] = field(default_factory=lambda: {"m"})

    def index(self) -> list[ModelState]:
        return [ModelState(n, v, "READY", "") for n, versions in sorted(self.served.items()) for v in versions]

    def load(self, model: str, config: Mapping[str, Any] | None) -> None:
        used = json.loads(json.dumps(config)) if config is not None else read_config(self.repository / model)
        versions = served_versions(used, ModelEntry(self.repository / model).versions())
        if not versions:
            raise Internal("at least one version must be available")
        self._step(f"{model} {versions}")
        for version in versions:
            if (model, version) in self.broken:
                raise Internal(f"version {version} is at UNAVAILABLE state: it is broken;")
        self.served[model], self.instances[model] = versions, instance_count(used)
        self.check()

    def unload(self, model: str) -> None:
        while self.at_unload:
            self.at_unload.pop()()
        self._step(f"{model} unloaded")
        self.served.pop(model, None)
        self.check()

    def check(self) -> None:
        """Check that each served version of a watched front has all its runtimes in the same version."""
        for front in self.watched:
            for version in self.served.get(front, ()):
                manifest = load_arlo_manifest(self.repository / front / str(version))
                for runtime in manifest.runtimes if manifest.placement == "partitioned" else ():
                    name = runtime_model(front, runtime.max_length)
                    assert version in self.served.get(name, ()), f"{name} lacks version {version}: {self.steps}"

    def _step(self, what: str) -> None:
        if len(self.steps) in self.killed_at:
            raise Killed
        self.steps.append(what)


@dataclass(frozen=True)
class RecordingControl(ServerControl):
    """Records loads; runs the functions in `during` while the first load is in progress."""

    address: str = ""
    calls: list[tuple[str, int | str]] = field(default_factory=list)
    during: list[Callable[[], None]] = field(default_factory=list)
    serving: dict[str, int] = field(default_factory=dict)

    def index(self) -> list[ModelState]:
        return [ModelState(name, version, "READY", "") for name, version in self.serving.items()]

    def load(self, model: str, config: Mapping[str, Any] | None) -> None:
        self.calls.append((model, instance_count(config or {})))
        while self.during:
            self.during.pop()()

    def unload(self, model: str) -> None:
        self.calls.append((model, "unload"))
