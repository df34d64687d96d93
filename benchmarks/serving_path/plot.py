"""The benchmark's plot."""

from __future__ import annotations

import statistics
from pathlib import Path

from benchmarks.report import Report, machine_line


def save(report: Report, file: Path) -> None:
    """Draw latency by path and throughput by concurrency into a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
    medians = report.measured["overhead_ms"]
    left.bar(list(medians), [statistics.median(values) for values in medians.values()], color="#3b7ea1")
    left.set_ylabel("p50 latency, ms")
    left.set_title("one query of 25 tokens at a time")
    cells = report.measured["throughput"]
    concurrencies = [int(c) for c in cells]
    for name, label in (("bare", "bare Python-backend model"), ("tidal", "Tidal arlo")):
        values = [statistics.median(r["per_second"] for r in cells[str(c)][name]) for c in concurrencies]
        right.plot(concurrencies, values, marker="o", label=label)
    right.set_xscale("log", base=2)
    right.set_xticks(concurrencies, [str(c) for c in concurrencies])
    right.set_ylim(bottom=0)
    right.set_xlabel("queries in flight")
    right.set_ylabel("answers a second")
    right.legend()
    right.set_title("throughput, lengths as of tweets")
    figure.suptitle(machine_line(), fontsize=6)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
