"""The state of models, from what the status endpoints of their servers report. All are pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

READY: Final = "ready"
RESTARTING: Final = "restarting"
NOT_READY: Final = "not ready"
#: Names of tasks that are given for each model.
MAX_TASKS: Final = 500


@dataclass(slots=True)
class ModelState:
    """State of one model on all servers.

    Attributes:
        state: `ready`, `restarting` or `not ready`; of several servers the best.
        ready_on: Number of servers on which it is ready.
        versions: Versions that serve.
        restarts: Number of restarts of its processes, those with their server included.
        reason: Why it, or a newer version, does not serve; empty for no reason.
        facts: Facts from the repository: `backend`, `engine`, `precision`, `instances`, `max_length`, `tasks`.
    """

    state: str = NOT_READY
    ready_on: int = 0
    versions: tuple[str, ...] = ()
    restarts: int = 0
    reason: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The state as plain data for JSON."""
        facts = {name: self.facts.get(name) for name in ("backend", "engine", "precision")}
        tasks = sorted(self.facts.get("tasks") or ())
        return {
            "state": self.state,
            "ready_on": self.ready_on,
            "versions": list(self.versions),
            "restarts": self.restarts,
            "reason": self.reason,
            **facts,
            "tasks": tasks[:MAX_TASKS],
            "task_count": len(tasks),
        }


def states_of(
    reports: Sequence[Mapping[str, Any]], catalogs: Sequence[Mapping[str, Any]] = ()
) -> dict[str, ModelState]:
    """Return the state of every model that a server reports and that serves or should.

    Args:
        reports: Document of `GET /ready` of each server.
        catalogs: Document of `GET /models` of each server.
    """
    found: dict[str, ModelState] = {}
    for report in reports:
        restarting = set(report.get("restarting", ()))
        own = report.get("restarts", {})
        for name, model in report["models"].items():
            unloaded = not model.get("ready") and not model.get("wanted") and model.get("reason") == "unloaded"
            if unloaded and name not in found:
                continue
            state = found.setdefault(name, ModelState())
            state.restarts += int(own.get(name, 0)) + int(report.get("server_restarts", 0))
            versions = {*state.versions, *map(str, model.get("versions", ()))}
            state.versions = tuple(sorted(versions, key=lambda version: (len(version), version)))
            state.reason = state.reason or str(model.get("reason") or "")
            if model.get("ready") and name not in restarting:
                state.ready_on += 1
                state.state = READY
            elif name in restarting and state.state != READY:
                state.state = RESTARTING
    for catalog in catalogs:
        for name, facts in catalog["models"].items():
            if name in found and not found[name].facts:
                found[name].facts = facts
    return found
