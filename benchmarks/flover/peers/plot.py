"""Figure of the comparison, from the report's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.flover.peers.cases import STREAMS
from benchmarks.flover.peers.measuring import GENAI, TIDAL
from benchmarks.plots.bars import Bars, save


def plot(document: Mapping[str, Any], file: Path) -> None:
    """Draw tokens per second, and the time to the first token, of a report's JSON document into a PNG or SVG."""
    panels = []
    for decoder, runs in document["measured"]["decoders"].items():
        for title, figures, unit in (
            ("tokens per second by streams (higher is better)", [f"tokens/s[{n}]" for n in STREAMS], "tokens/s"),
            ("first token of a prompt (lower is better)", _prompts(runs), "s"),
        ):
            groups = [f"{precision}\n{_short(figure)}" for precision in runs for figure in figures]
            systems = {
                side: [run["figures"][figure][side] for run in runs.values() for figure in figures]
                for side in (TIDAL, GENAI)
            }
            panels.append(Bars(f"{decoder}: {title}", unit, groups, systems, log=True))
    save(panels, "Tidal and OpenVINO GenAI, in processes", document["machine"], file, tidal=[TIDAL], width=6.5)


def _prompts(runs: Mapping[str, Any]) -> list[str]:
    names = next(iter(runs.values()))["figures"]
    return [each for each in names if each.startswith("first token, ") and each.endswith("prompt")]


def _short(figure: str) -> str:
    return figure.removeprefix("tokens/s[").removesuffix("]").removeprefix("first token, ").removesuffix(" prompt")
