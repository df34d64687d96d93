"""The partitioned models that are ready on a server, with their profiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from tidal.arlo.manifest import load_arlo_manifest
from tidal.controller.reports import ModelProfile
from tidal.controller.series import Series, slo_of
from tidal.controller.server_finder import ControlledServer
from tidal.device import DeviceKind
from tidal.errors import InvalidArgument
from tidal.repository.entries import ModelEntry
from tidal.server.allocate import LiveFront, partitioned_model


@dataclass(frozen=True, slots=True)
class ServedFront:
    """A partitioned model that is ready on the server and can be controlled.

    Attributes:
        live: The model on the server.
        versions: Versions of it that serve.
        profile: Published properties for decisions.
        kind: Kind of the devices that it runs on.
        share: Devices that an instance occupies: cores, or a share of a GPU.
    """

    live: LiveFront
    versions: tuple[int, ...]
    profile: ModelProfile
    kind: DeviceKind
    share: Fraction

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.live.model.name


def served_fronts(server: ControlledServer, series: Series) -> Iterator[ServedFront]:
    """Iterate over partitioned models that serve their newest version and have published their SLO.

    Args:
        server: Server to read.
        series: Series of its `/metrics` page.

    Raises:
        Unavailable: The server does not answer.
    """
    repository = server.state.repository
    ready: dict[str, list[int]] = {}
    for row in server.control.index():
        if row.state == "READY":
            ready.setdefault(row.name, []).append(row.version)
    for model in sorted(ready):
        versions = sorted(ready[model])
        slo_s = slo_of(series, model, versions[-1])
        if not slo_s:
            continue
        live = LiveFront(server.control, server.state.metrics, repository, partitioned_model(repository, model))
        if not live.serves():
            continue
        try:
            manifest = load_arlo_manifest(ModelEntry(repository / model).version_dir(versions[-1]))
        except InvalidArgument:  # removed by a publish since
            continue
        lengths = live.model.lengths
        latencies = tuple(manifest.profile.latency_ms(length) / 1e3 for length in lengths)
        profile = ModelProfile(lengths, latencies, slo_s)
        yield ServedFront(live, tuple(versions), profile, manifest.device.kind, manifest.device_share)
