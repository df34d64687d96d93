"""The partitioned models that a server serves, and what is known of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidal.arlo.manifest import load_arlo_manifest
from tidal.controller.decisions import ModelProfile
from tidal.controller.following import ControlledServer
from tidal.controller.series import Series, slo_of
from tidal.errors import InvalidArgument
from tidal.repository.entries import ModelEntry
from tidal.server.allocate import LiveFront, partitioned_model


@dataclass(frozen=True, slots=True)
class ServedFront:
    """A partitioned model that serves, ready to be controlled."""

    live: LiveFront
    versions: tuple[int, ...]
    profile: ModelProfile

    @property
    def model(self) -> str:
        """Its name."""
        return self.live.model.name


def served_fronts(server: ControlledServer, series: Series, names: Sequence[str]) -> Iterator[ServedFront]:
    """The named partitioned models, or all, as far as they serve their newest publish and have told their SLO.

    Raises:
        Unavailable: the server does not answer.
    """
    repository = server.state.repository
    ready: dict[str, list[int]] = {}
    for row in server.control.index():
        if row.state == "READY":
            ready.setdefault(row.name, []).append(row.version)
    for model in names or sorted(ready):
        versions = sorted(ready.get(model, ()))
        slo_s = slo_of(series, model, versions[-1]) if versions else None
        if not slo_s:
            continue
        live = LiveFront(server.control, server.state.metrics, repository, partitioned_model(repository, model))
        if not live.serves():
            continue
        try:
            manifest = load_arlo_manifest(ModelEntry(repository / model).version_dir(versions[-1]))
        except InvalidArgument:  # a publish has just removed it
            continue
        lengths = live.model.lengths
        latencies = tuple(manifest.profile.latency_ms(length) / 1e3 for length in lengths)
        yield ServedFront(live, tuple(versions), ModelProfile(lengths, latencies, slo_s))
