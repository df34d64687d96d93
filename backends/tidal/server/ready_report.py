"""What `tidal serve` says when it is ready."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidal.server.control import ServerControl
from tidal.server.launch import Launch, Selection, build_command
from tidal.server.state import ServerState


@dataclass(frozen=True, slots=True)
class ReadyReport:
    """A server that serves: its state, its models as (name, version, backend, state), what is not published, which
    ensembles lack a step, and which models do not load."""

    state: ServerState
    source: str
    models: tuple[tuple[str, int, str, str], ...]
    unpublished: tuple[tuple[str, str], ...]
    incomplete: tuple[tuple[str, str], ...]
    failed: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def of(
        state: ServerState, launch: Launch, control: ServerControl, selection: Selection, failed: Mapping[str, str]
    ) -> ReadyReport:
        """Ask a ready server for its models; `failed` are those that do not load, with the reason."""
        models = tuple(
            (row.name, row.version, _backend(control.config(row.name, row.version)), row.state)
            for row in control.index()
            if row.state == "READY"
        )
        unpublished = tuple((entry.name, build_command(entry)) for entry in selection.unpublished)
        source = launch.installation.source
        return ReadyReport(state, source, models, unpublished, selection.incomplete, tuple(failed.items()))


def _backend(config: dict[str, object]) -> str:
    return str(config.get("backend") or config.get("platform") or "-")
