"""What `tidal serve` says when it is ready."""

from __future__ import annotations

from dataclasses import dataclass

from tidal.server.control import ServerControl
from tidal.server.launch import Launch, Selection, build_command
from tidal.server.state import ServerState


@dataclass(frozen=True, slots=True)
class ReadyReport:
    """A server that is ready: its state, its models as (name, version, backend, state), what is not published, and
    which ensembles lack a step."""

    state: ServerState
    source: str
    models: tuple[tuple[str, int, str, str], ...]
    unpublished: tuple[tuple[str, str], ...]
    incomplete: tuple[tuple[str, str], ...]

    @staticmethod
    def of(state: ServerState, launch: Launch, control: ServerControl, selection: Selection) -> ReadyReport:
        """Ask a ready server for its models."""
        models = tuple(
            (row.name, row.version, _backend(control.config(row.name, row.version)), row.state)
            for row in control.index()
            if row.state == "READY"
        )
        unpublished = tuple((entry.name, build_command(entry)) for entry in selection.unpublished)
        return ReadyReport(state, launch.installation.source, models, unpublished, selection.incomplete)


def _backend(config: dict[str, object]) -> str:
    return str(config.get("backend") or config.get("platform") or "-")
