"""The report of `tidal serve` once it is ready."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidal.server.control import ServerControl
from tidal.server.launch import Launch, Selection, build_command
from tidal.server.state import ServerState


@dataclass(frozen=True, slots=True)
class ReadyReport:
    """A server that serves.

    Attributes:
        state: State of the server.
        source: Source of its tritonserver.
        models: Versions that serve, as (name, version, backend, state).
        unpublished: Models without a published version, each with the command that builds it.
        incomplete: Ensembles that are not served because a step is not, each with the reason.
        failed: Models that do not load, each with the reason.
    """

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
        """Request the models of a ready server; `failed` are those that do not load, each with the reason."""
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
