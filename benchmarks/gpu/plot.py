"""`python -m benchmarks.gpu.plot FILE`: the figure of a visit's `gpu.json`, beside it as a PNG."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.plots.bars import Bars, save

# Step, name of its cases by system, title and unit of the panel; the first system of each is Tidal's.
_BY_SYSTEM = (("lengths", "single query, ms", "BERT-base fp16, one query (lower is better)", "ms"),)
_BY_CASE = (
    ("live_arlo", "latency by load", "BERT-base fp16, mean latency by load in % (lower is better)", "ms"),
    ("tasks", "queries/s", "BERT-base fp32, 32 tasks (higher is better)", "queries per second"),
    ("task_memory", "MiB", "device memory by tasks (lower is better)", "MiB"),
)
TIDAL = ("static", "Arlo", "PetS", "Flover", "fp32")


def draw(document: Mapping[str, Any], file: Path) -> bool:
    """Draw what was measured into a PNG or SVG; return False if nothing was."""
    panels = []
    for step, name, title, unit in _BY_SYSTEM:
        found = _measured(document, step, name)
        cases = list(next(iter(found.values()), {}))
        if cases:
            panels.append(
                Bars(title, unit, cases, {system: [[own[c]] for c in cases] for system, own in found.items()})
            )
    for step, name, title, unit in _BY_CASE:
        found = _measured(document, step, name)
        systems = list(dict.fromkeys(system for cells in found.values() for system in cells))
        whole = [system for system in systems if all(system in cells for cells in found.values())]
        if whole:
            rounds = {system: [[_number(cells[system])] for cells in found.values()] for system in whole}
            panels.append(Bars(title, unit, list(found), rounds))
    for step in ("gpt2", "gptj"):
        found = _measured(document, step, "tokens/s")
        if found:
            title = f"decoder of {'GPT-2' if step == 'gpt2' else 'GPT-J'}'s size (higher is better)"
            panels.append(Bars(title, "tokens per second", ["32 requests"], {s: [[v]] for s, v in found.items()}))
    if panels:
        machine = document["machine"]
        named = {**machine, "cpu": f"{'; '.join(machine['gpus']) or 'no GPU'}, {machine['cpu']}"}
        save(
            panels, "On a GPU: Tidal's torch engines against the best way to do without", named, file, tidal=list(TIDAL)
        )
    return bool(panels)


def _measured(document: Mapping[str, Any], step: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = document["measured"].get(step, {}).get("measured", {}).get(name, {})
    return found


def _number(cell: Any) -> float:
    return float(cell["mean_ms"] if isinstance(cell, dict) else cell)


def main() -> int:
    """Draw the figure; return 0, or 1 if the file has no figures."""
    source = Path(sys.argv[1])
    return 0 if draw(json.loads(source.read_text(encoding="utf-8")), source.with_suffix(".png")) else 1


if __name__ == "__main__":
    raise SystemExit(main())
