"""The systems that are compared on emulated devices."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.cluster.simulated.figures import Setting
from benchmarks.cluster.simulated.inputs import DT_INFLATION, INFAAS_FILL, MAX_LENGTHS, Stream
from tidal.simulator.arlo import LengthHistory, SimulatedSystem, SystemName, make_system


@dataclass(frozen=True, slots=True)
class ComparedSystem:
    """A system.

    Attributes:
        kind: Kind of the system.
        inflation: Cost of dynamic shapes, for DT; None for others.
    """

    kind: SystemName
    inflation: float | None = None

    @property
    def name(self) -> str:
        """Its name in results."""
        return self.kind.value if self.inflation is None else f"{self.kind.value}_{self.inflation:g}"

    @property
    def title(self) -> str:
        """Its name in tables."""
        return self.kind.value if self.inflation is None else f"{self.kind.value}, inflation {self.inflation:g}"

    def stream(self, setting: Setting) -> Stream:
        """Return the model of a setting with this system's cost of dynamic shapes."""
        return setting.stream if self.inflation is None else setting.stream.inflated(self.inflation)

    def instances(self, setting: Setting, history: LengthHistory) -> tuple[int, ...]:
        """Return its instances by runtime.

        Args:
            setting: Experiment.
            history: Past queries, from which Arlo determines its own.
        """
        if self.kind in (SystemName.ST, SystemName.DT):
            return (0,) * (len(MAX_LENGTHS) - 1) + (setting.gpus,)
        found = self.simulated(setting, history).instances
        assert found is not None
        return found

    def simulated(self, setting: Setting, history: LengthHistory) -> SimulatedSystem:
        """Return it for the simulator; see `instances`."""
        times, slo_s = self.stream(setting).times, setting.stream.slo_s
        return make_system(self.kind, times, gpus=setting.gpus, slo_s=slo_s, history=history, fill=INFAAS_FILL)


ARLO, EARLIEST = ComparedSystem(SystemName.ARLO), ComparedSystem(SystemName.EARLIEST)
#: DT has the smallest published cost of dynamic shapes, and the one that gives the mean of Figure 6a in simulation.
SYSTEMS = (
    ARLO,
    EARLIEST,
    ComparedSystem(SystemName.DT, DT_INFLATION),
    ComparedSystem(SystemName.DT, 1.54),
    ComparedSystem(SystemName.INFAAS),
    ComparedSystem(SystemName.ST),
)
