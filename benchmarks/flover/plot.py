"""Plots of the benchmark: total time and latency by λ (Figure 5), tokens over time (Figure 7), and latency growth."""

from __future__ import annotations

import statistics
from pathlib import Path

from benchmarks.flover.kept_run import FloverRun
from benchmarks.flover.plan import CONSTANT, REQUESTS, Size, swept, texts, together
from benchmarks.flover.systems import INSTANCES, LABELS, TIDAL
from benchmarks.report import machine_line


def save(file: Path, run: FloverRun, size: Size) -> None:
    """Draw four panels into a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 8.5), layout="constrained")
    FigureCanvasAgg(figure)
    (totals, latencies), (progress, growth) = figure.subplots(2, 2)
    for system in (INSTANCES, TIDAL):
        gaps = [gap_s for gap_s in size.gaps_s if run.rounds(swept(gap_s), system)]
        of_gap = [run.rounds(swept(gap_s), system) for gap_s in gaps]
        positions = [gap_s * 1e3 for gap_s in gaps]
        for panel, name in ((totals, "total_s"), (latencies, "latency_s")):
            heights = [statistics.median(getattr(each, name) for each in rounds) for rounds in of_gap]
            panel.plot(positions, heights, marker="o", label=LABELS[system])
    overlaps = totals.twinx()
    gaps = [gap_s for gap_s in size.gaps_s if run.rounds(swept(gap_s), TIDAL)]
    shares = [statistics.median(each.overlap for each in run.rounds(swept(gap_s), TIDAL)) for gap_s in gaps]
    overlaps.plot([gap_s * 1e3 for gap_s in gaps], [REQUESTS * share for share in shares], "y--", label="overlap")
    overlaps.set(ylabel="requests at the same time, Tidal", ylim=(0, REQUESTS))
    for panel, what in ((totals, "total s"), (latencies, "mean latency s")):
        panel.set(xscale="log", xlabel="λ ms", ylabel=what, ylim=(0, None))
        panel.set_title(f"{REQUESTS} requests of {texts(*size.sweep)}, Poisson", fontsize=9)
        panel.legend()
    for system, rounds in run.outcomes.get(CONSTANT, {}).items():
        for outcome in rounds[:1]:
            seconds, tokens = zip(*outcome.progress, strict=True)
            progress.step(seconds, tokens, where="post", label=LABELS.get(system, system))
    progress.set(xlabel="s", ylabel="tokens")
    progress.set_title(f"{REQUESTS} requests of {texts(*size.sweep)}, one every 500 ms", fontsize=9)
    progress.legend(fontsize=7)
    systems = dict.fromkeys(system for count in size.at_once for system in run.outcomes.get(together(count), {}))
    for system in systems:
        counts = [count for count in size.at_once if run.rounds(together(count), system)]
        of_count = [run.rounds(together(count), system) for count in counts]
        heights = [statistics.median(each.latency_s for each in rounds) for rounds in of_count]
        growth.plot(counts, heights, marker="o", label=LABELS[system])
    growth.set_xscale("log", base=2)
    growth.set(xlabel="requests at once", ylabel="mean latency s", ylim=(0, None))
    growth.set_title(f"{size.tokens} tokens each", fontsize=9)
    growth.legend()
    figure.suptitle(machine_line(), fontsize=7)
    figure.savefig(file, dpi=110)
