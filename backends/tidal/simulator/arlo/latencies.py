"""Figures of the latencies of a simulated run."""

from __future__ import annotations

import numpy as np

from tidal.simulator.requests import Floats


class LatencyFigures:
    """Mean, percentiles and share over a limit of `latencies_s`, float64 [queries], in seconds."""

    latencies_s: Floats

    @property
    def mean_ms(self) -> float:
        """Mean latency in milliseconds; 0 without queries."""
        return float(self.latencies_s.mean()) * 1e3 if len(self.latencies_s) else 0.0

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the latency in milliseconds; 0 without queries."""
        return float(np.percentile(self.latencies_s, percent)) * 1e3 if len(self.latencies_s) else 0.0

    def share_over(self, slo_s: float) -> float:
        """Return the share of queries that took longer than the SLO, in seconds."""
        return float((self.latencies_s > slo_s).mean()) if len(self.latencies_s) else 0.0
