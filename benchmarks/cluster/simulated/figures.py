"""The settings of Arlo's evaluation, with the published values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.cluster.simulated.inputs import BASE, HEADROOM, INFAAS_FILL, LARGE, ClusterData, Stream
from benchmarks.report import progress
from tidal.simulator.arlo import (
    ClusterResult,
    ScalingBounds,
    ServiceTimes,
    SyntheticRequests,
    SystemName,
    length_history,
    make_system,
    simulate,
)

FOUR = (SystemName.ARLO, SystemName.DT, SystemName.INFAAS, SystemName.ST)
#: The four, and Arlo with dispatch by expected completion.
SWEPT = (SystemName.EARLIEST, *FOUR)


@dataclass(frozen=True)
class Setting:
    """One experiment.

    Args:
        title: Figure or table of the paper.
        stream: Model and SLO.
        gpus: Number of GPUs at the start.
        rate: Mean number of requests per second.
        systems: Compared systems.
        bursty: Whether arrivals are bursty instead of stable.
        seconds: Duration of the arrivals with --quick, and without.
        minute: Minute of the trace at which the arrivals begin.
        scale: Bounds of autoscaling; None for a fixed number of GPUs.
        runtimes: Lengths of the runtimes; None for the multiples of 64.
    """

    title: str
    stream: Stream
    gpus: int
    rate: float
    systems: Sequence[SystemName]
    bursty: bool
    seconds: tuple[int, int]
    minute: int = 620
    scale: ScalingBounds | None = None
    runtimes: tuple[int, ...] | None = None

    def run(self, data: ClusterData, quick: bool) -> dict[str, ClusterResult]:
        """Return the results by system, all with the same requests."""
        workload = data.workload(self.rate, self.seconds[0 if quick else 1], minute=self.minute, bursty=self.bursty)
        return {name.value: self._one(name, workload) for name in self.systems}

    def _one(self, name: SystemName, workload: SyntheticRequests) -> ClusterResult:
        progress(f"{self.title}: {name.value}")
        times: ServiceTimes = self.stream.times
        if self.runtimes is not None:
            times = times.of_runtimes(self.runtimes)
        system = make_system(
            name,
            times,
            gpus=self.gpus,
            slo_s=self.stream.slo_s,
            history=length_history(workload) if name is SystemName.GLOBAL else length_history(workload, 120),
            scale=self.scale,
            fill=INFAAS_FILL,
        )
        return simulate(system, workload)


FIGURE_6 = (
    Setting("Figure 6a: Bert-Base, 10 GPUs, 1k req/s, Stable", BASE, 10, 1000, FOUR, False, (60, 600)),
    Setting("Figure 6b: Bert-Large, 10 GPUs, 1.5k req/s, Stable", LARGE, 10, 1500, FOUR, False, (60, 600)),
)
FIGURE_7 = tuple(
    Setting(f"Figure 7: Bert-Base, 10 GPUs, {rate} req/s, Stable", BASE, 10, rate, SWEPT, False, (15, 120))
    for rate in (500, 1000, 1500, 2000, 2500)
)
FIGURE_8 = Setting(
    "Figure 8: Bert-Large, autoscaling from 5 GPUs, 1k req/s, Bursty",
    LARGE, 5, 1000, FOUR, True, (300, 3600), minute=600, scale=ScalingBounds(1, 40, HEADROOM),
)  # fmt: skip
FIGURE_10 = (
    Setting("Figure 10a: Bert-Base, 90 GPUs, 8k req/s, Bursty", BASE, 90, 8000, FOUR, True, (20, 120)),
    Setting("Figure 10b: Bert-Large, 300 GPUs, 25k req/s, Bursty", LARGE, 300, 25_000, FOUR, True, (10, 60)),
)
FIGURE_11 = tuple(
    Setting(
        f"Figure 11: Bert-Large, 40 GPUs, {number} runtimes", LARGE, 40, 7000, (SystemName.ARLO,), True, (40, 300),
        runtimes=tuple(512 * (i + 1) // number for i in range(number)),
    )
    for number in (2, 4, 8, 16)
)  # fmt: skip
TABLE_3 = Setting(
    "Table 3, Figure 12: Bert-Large, 40 GPUs", LARGE, 40, 7000,
    (SystemName.ARLO, SystemName.GLOBAL, SystemName.EVEN), True, (240, 2400),
)  # fmt: skip
DISPATCHERS = (SystemName.ARLO, SystemName.EARLIEST, SystemName.ILB, SystemName.IG)
TABLE_4 = tuple(
    Setting(f"Table 4: Bert-Large, {gpus} GPUs, {rate // 1000}k req/s, Bursty", LARGE, gpus, rate, DISPATCHERS, True, s)
    for gpus, rate, s in ((25, 6000, (30, 300)), (80, 20_000, (10, 120)), (1000, 250_000, (1, 30)))
)


@dataclass(frozen=True)
class Published:
    """Published values of one system in one setting: latencies in ms, and the time-weighted number of GPUs."""

    mean_ms: float | None = None
    p98_ms: float | None = None
    median_ms: float | None = None
    gpus: float | None = None


#: Change of Arlo's mean latency against another system's, from the text of §5.
MEAN_VS = {
    FIGURE_6[0].title: {"st": -0.703, "dt": -0.237, "infaas": -0.249},
    FIGURE_6[1].title: {"st": -0.667, "dt": -0.292, "infaas": -0.393},
    FIGURE_10[0].title: {"st": -0.703, "dt": -0.241, "infaas": -0.313},
    FIGURE_10[1].title: {"st": -0.981, "dt": -0.307, "infaas": -0.417},
}
#: Largest reduction of the 98th percentile over both streams.
P98_VS = {
    "Figure 6": {"st": -0.894, "dt": -0.259, "infaas": -0.401},
    "Figure 10": {"st": -0.984, "dt": -0.260, "infaas": -0.293},
}
FIGURE_8_PAPER = {
    "arlo": Published(gpus=5.49, p98_ms=330.41),
    "dt": Published(gpus=6.38, p98_ms=397.10),
    "infaas": Published(gpus=6.80, p98_ms=404.12),
    "st": Published(gpus=8.13, p98_ms=430.54),
}
FIGURE_11_PAPER = {8: Published(mean_ms=14.16, p98_ms=84.04), 16: Published(mean_ms=14.45, p98_ms=81.74)}
TABLE_3_PAPER = {
    "even": Published(455.19, 3407.02, 21.13),
    "global": Published(80.58, 1514.53, 8.21),
    "arlo": Published(11.51, 75.04, 8.02),
}
TABLE_4_PAPER = (
    {"ilb": Published(1035.90, 9555.3), "ig": Published(150.21, 422.03), "arlo": Published(77.8, 414.58)},
    {"ilb": Published(77.83, 1024.78), "ig": Published(157.09, 1183.85), "arlo": Published(73.61, 810.41)},
    {"ilb": Published(76.23, 419.04), "ig": Published(172.00, 990.29), "arlo": Published(76.09, 408.79)},
)
