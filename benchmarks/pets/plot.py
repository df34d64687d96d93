"""The figure of many tasks: throughput by number of tasks, batching functions, and memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.pets import strategies
from benchmarks.pets.systems import SEQS
from benchmarks.plots import style

_MIB = 1 << 20
_SWEPT = re.compile(r"tasks \((\d+) x 1, (\d+) tokens\)")
_DEFAULT_BATCHING = "joint"
_PETS = "PetS"


@style.styled
def save(document: Mapping[str, Any], file: Path) -> None:
    """Draw the report's JSON document into a PNG or SVG."""
    measured = document["measured"]
    figure, (throughput, batching, memory) = style.panels(3, height=3.8)
    swept = {int(found[1]): cell for case, cell in measured["throughput"].items() if (found := _SWEPT.fullmatch(case))}
    labels = {_PETS: "Tidal (PetS): all tasks on one encoder", SEQS: "one full model for each task"}
    for system, colour in style.colours([_PETS, SEQS], [_PETS]).items():
        tasks = [number for number, cell in swept.items() if system in cell]
        rounds = [swept[number][system]["per_second"] for number in tasks]
        if tasks:
            style.line(throughput, tasks, rounds, colour, labels[system])
    throughput.set_xscale("log", base=2)
    throughput.set(xlabel="tasks, one query of 32 tokens each", ylabel="queries per second", ylim=(0, None))
    throughput.set_title("tasks of all five kinds (higher is better)")
    throughput.legend()
    _batching_functions(batching, measured["batching"])
    _memory(memory, measured["memory_split"])
    title = "Many fine-tuned tasks: throughput, batching functions, and memory"
    style.finish(figure, title, document["machine"], file)


def _batching_functions(axes: Any, rows: list[Mapping[str, Any]]) -> None:
    spreads = sorted({row["spread"] for row in rows})

    def seconds(name: str, spread: float) -> float:
        return float(sum(row["seconds"] for row in rows if (row["batching"], row["spread"]) == (name, spread)))

    names = list(dict.fromkeys(row["batching"] for row in rows))
    for name, colour in style.colours(names, [_DEFAULT_BATCHING]).items():
        speeds = [[seconds(strategies.FIXED, spread) / seconds(name, spread)] for spread in spreads]
        style.line(axes, spreads, speeds, colour, name)
    axes.set(xlabel="standard deviation of lengths, tokens", ylabel=f"speed over batches of {strategies.FIXED_SIZE}")
    axes.set_title("batching functions (higher is better)")
    axes.legend(ncols=2)


def _memory(axes: Any, rows: list[Mapping[str, Any]]) -> None:
    names = [str(row["tasks"]) for row in rows]
    bottom = [0.0] * len(rows)
    parts = {"shared": "base", "own": "tasks", "data": "activations (computed)"}
    for (key, label), colour in zip(parts.items(), (style.TIDAL, style.VARIANTS[0], style.VARIANTS[2]), strict=True):
        heights = [row[key] / _MIB for row in rows]
        axes.bar(names, heights, bottom=bottom, label=label, color=colour)
        bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
    full = [row["full"] / _MIB for row in rows]
    axes.plot(names, full, color=style.PARTS[1], linestyle="--", marker="o", label="full models")
    axes.set(yscale="log", xlabel="tasks", ylabel="MiB", ylim=(10, None), title="memory (lower is better)")
    axes.legend()
