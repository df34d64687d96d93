"""The benchmark's plot: throughput by tasks, ways to batch, and where memory goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.pets import strategies
from benchmarks.pets.breakdown import Memory
from benchmarks.pets.strategies import Executed
from benchmarks.pets.systems import SEQS
from benchmarks.pets.throughput import Outcome
from benchmarks.report import machine_line

_MIB = 1 << 20


def save(file: Path, outcomes: Sequence[Outcome], found: Sequence[Executed], memories: Sequence[Memory]) -> None:
    """Draw three panels into a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, middle, right = figure.subplots(1, 3)
    sweep = sorted((each for each in outcomes if each.case.name == "tasks"), key=lambda each: each.case.shape.tasks)
    for system in dict.fromkeys(system for each in sweep for system in each.found):
        measured = [each for each in sweep if system in each.found]
        tasks = [each.case.shape.tasks for each in measured]
        left.plot(tasks, [each.per_second(system) for each in measured], marker="o", label=system)
    if sweep:
        left.set_xscale("log", base=2)
        left.set(xlabel=f"tasks, one query of {sweep[0].case.shape.length} tokens each", ylabel="queries a second")
        left.set_title(f"all five kinds; {SEQS} is one full model for each task", fontsize=9)
        left.legend()
    else:
        left.set_axis_off()  # quick runs sweep nothing
    spreads = sorted({each.spread for each in found})
    for name in dict.fromkeys(each.batching for each in found):
        of_way = [
            sum(each.seconds for each in found if (each.batching, each.spread) == (strategies.FIXED, spread))
            / sum(each.seconds for each in found if (each.batching, each.spread) == (name, spread))
            for spread in spreads
        ]
        middle.plot(spreads, of_way, marker="o", label=name)
    middle.set(xlabel="standard deviation of lengths, tokens", ylabel=f"speed over batches of {strategies.FIXED_SIZE}")
    middle.legend(fontsize=7)
    names = [str(each.tasks) for each in memories]
    bottom = [0.0] * len(memories)
    for label, sizes in (
        ("base", [each.shared for each in memories]),
        ("tasks", [each.own for each in memories]),
        ("activations (computed)", [each.data for each in memories]),
    ):
        heights = [size / _MIB for size in sizes]
        right.bar(names, heights, bottom=bottom, label=label)
        bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
    right.plot(names, [each.full / _MIB for each in memories], "k.--", label="full models")
    right.set_yscale("log")
    right.set_ylim(bottom=10)
    right.set(xlabel="tasks", ylabel="MiB")
    right.legend(fontsize=7)
    figure.suptitle(machine_line(), fontsize=7)
    figure.savefig(file, dpi=110)
