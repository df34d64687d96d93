"""The engine, device and options that engines of a vision transformer are built for."""

from __future__ import annotations

from dataclasses import dataclass

from tidal.device import DeviceKind
from tidal.engines import EngineKind, PlanOptions


@dataclass(frozen=True, slots=True)
class EngineTarget:
    """What engines are built for.

    Attributes:
        kind: Engine kind.
        device: Device to run on.
        threads: CPU threads of each engine.
        options: Options of plans.
    """

    kind: EngineKind
    device: DeviceKind
    threads: int
    options: PlanOptions
