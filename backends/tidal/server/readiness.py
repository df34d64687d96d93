"""Which models a server is expected to serve, and whether each of them answers: the evaluation behind `GET /ready`.

Triton's own `/v2/health/ready` does not report this: it stays 400 after a version failed to load, even while another
version of the model serves, and it is 200 while every model is unloaded. `evaluate` is a pure function of what was
observed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tidal.server.control import ModelState
from tidal.server.reasons import sentence

_UNLOADED = "unloaded"


@dataclass(frozen=True, slots=True)
class ReadinessObservation:
    """What one poll of a server showed.

    Attributes:
        index: Triton's repository index.
        interrupted: Models whose Python process ended and that are being restarted, each with the reason; Triton may
            list them as READY.
        unrecovered: Models that did not load again after such a restart, each with the reason.
    """

    index: Sequence[ModelState]
    interrupted: Mapping[str, str] = field(default_factory=dict)
    unrecovered: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WantedModels:
    """What `evaluate` keeps from one poll to the next.

    Attributes:
        models: Models that have served since the start and were not unloaded on purpose.
        ready: Models with a READY version at the last poll of the same tritonserver.
        failed: Models that did not load at the start, each with the reason; not wanted until they serve for the first
            time.
    """

    models: frozenset[str] = frozenset()
    ready: frozenset[str] = frozenset()
    failed: Mapping[str, str] = field(default_factory=dict)

    def on_new_server(self, planned: Sequence[str], failed: Mapping[str, str]) -> WantedModels:
        """The wanted models after a restart of tritonserver.

        Args:
            planned: Models that it was to load.
            failed: Models that did not load, each with the reason.
        """
        return WantedModels(self.models & set(planned), frozenset(), failed)


@dataclass(frozen=True, slots=True)
class ModelReadiness:
    """Readiness of one model.

    Attributes:
        ready: Whether it answers.
        wanted: Whether the server is ready only if it answers.
        versions: Versions that serve, ascending.
        reason: Why it does not answer, or why a newer version does not load.
    """

    ready: bool
    wanted: bool
    versions: tuple[int, ...]
    reason: str | None = None


def evaluate(memory: WantedModels, seen: ReadinessObservation) -> tuple[dict[str, ModelReadiness], WantedModels]:
    """Evaluate the readiness of every known model.

    A model is wanted from the moment it serves for the first time. It stays wanted while it is reloaded, while its
    Python process is restarted, and after that restart failed. It is no longer wanted once it is unloaded on purpose:
    by `tidal models unload`, an allocation of 0 instances, or another client with the admin key. A version that does
    not load changes nothing while another version serves.

    Args:
        memory: Wanted models from the last call; `WantedModels()` at first.
        seen: Observation of the latest poll.

    Returns:
        Readiness by model name, sorted, and the wanted models for the next call.
    """
    rows: dict[str, list[ModelState]] = {}
    for row in seen.index:
        rows.setdefault(row.name, []).append(row)
    ready = frozenset(name for name, own in rows.items() if any(row.state == "READY" for row in own))
    kept = {name for name in memory.models if not _unloaded(name, rows.get(name, []), memory, seen)}
    wanted = frozenset(kept | ready)
    failed = {name: reason for name, reason in memory.failed.items() if name not in ready}
    report = {}
    for name in sorted({*rows, *wanted, *failed}):
        versions = tuple(sorted(row.version for row in rows.get(name, ()) if row.state == "READY"))
        answers = bool(versions) and name not in seen.interrupted
        reason = _newer_failure(rows[name], versions) if answers else _reason(name, rows.get(name, []), failed, seen)
        report[name] = ModelReadiness(answers, name in wanted, versions, reason)
    return report, WantedModels(wanted, ready, failed)


def as_json(report: Mapping[str, ModelReadiness]) -> dict[str, Any]:
    """The report as plain data for JSON."""
    return {name: asdict(each) for name, each in report.items()}


def _unloaded(name: str, rows: Sequence[ModelState], memory: WantedModels, seen: ReadinessObservation) -> bool:
    """Whether a wanted model was unloaded on purpose: it served at the last poll and does not now, without a reason."""
    if name in seen.interrupted or name in seen.unrecovered or name not in memory.ready:
        return False
    return not any(row.state in ("READY", "LOADING") for row in rows)


def _reason(name: str, rows: Sequence[ModelState], failed: Mapping[str, str], seen: ReadinessObservation) -> str:
    if name in seen.interrupted:
        return seen.interrupted[name]
    if any(row.state == "LOADING" for row in rows):
        return "loading"
    if name in seen.unrecovered:
        return seen.unrecovered[name]
    if name in failed:
        return failed[name]
    failures = [row for row in rows if row.state == "UNAVAILABLE" and row.reason not in ("", _UNLOADED)]
    if failures and not any(row.reason == _UNLOADED for row in rows):
        return f"version {failures[-1].version} does not load: {sentence(failures[-1].reason)}"
    return _UNLOADED if rows else "not loaded"


def _newer_failure(rows: Sequence[ModelState], serving: Sequence[int]) -> str | None:
    """Why a version newer than the one that serves does not load; for information."""
    for row in reversed(rows):
        if row.state == "UNAVAILABLE" and row.reason not in ("", _UNLOADED) and row.version > max(serving):
            return f"version {row.version} does not load: {sentence(row.reason)}"
    return None
