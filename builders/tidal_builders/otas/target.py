"""Target of engines: kind, device, threads and options."""

from __future__ import annotations

from dataclasses import dataclass

from tidal.device import DeviceKind
from tidal.engines import EngineKind, PlanOptions


@dataclass(frozen=True, slots=True)
class Target:
    """Target that engines are built for.

    Attributes:
        kind: Kind of the engines.
        device: Device that runs them.
        threads: Number of CPU threads of each engine.
        options: Options of TensorRT plans.
    """

    kind: EngineKind
    device: DeviceKind
    threads: int
    options: PlanOptions
