"""What engines are made for."""

from __future__ import annotations

from dataclasses import dataclass

from tidal.device import DeviceKind
from tidal.engines import EngineKind, PlanOptions


@dataclass(frozen=True, slots=True)
class Target:
    """Their kind, where they run, CPU threads of each, and how TensorRT plans are made."""

    kind: EngineKind
    device: DeviceKind
    threads: int
    options: PlanOptions
