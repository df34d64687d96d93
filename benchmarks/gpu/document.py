"""The results of a visit as a JSON document and as text, with claims that were not measured named as such."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.running import StepResult
from benchmarks.gpu.steps import GOALS, STEPS

NOT_MEASURED = "not measured"


def document(machine: Mapping[str, Any], results: Mapping[str, StepResult], *, dry_run: bool) -> dict[str, Any]:
    """Return the content of `gpu.json`, with the keys of all benchmarks' documents.

    Args:
        machine: Machine as `describe_machine` returns it.
        results: Results by name of the step, of those that have ended.
        dry_run: Whether tiny sizes ran on a CPU, so that figures have no meaning.
    """
    claims = []
    for goal in GOALS:
        value = None if dry_run or goal.step not in results else results[goal.step].claims.get(goal.name)
        claims.append(
            {
                "name": goal.name,
                "paper": goal.paper,
                "goal": goal.bound,
                "measured": value,
                "holds": None if value is None else goal.holds(value),
            }
        )
    return {
        "benchmark": "gpu",
        "quick": dry_run,
        "machine": dict(machine),
        "claims": claims,
        "measured": {name: result.document() for name, result in results.items()},
    }


def write(folder: Path, content: Mapping[str, Any]) -> None:
    """Write `gpu.json` and `gpu.txt` into a folder, each atomically."""
    for name, text in (("gpu.json", json.dumps(content, indent=1) + "\n"), ("gpu.txt", as_text(content))):
        aside = folder / f".{name}.{os.getpid()}"
        aside.write_text(text, encoding="utf-8")
        aside.replace(folder / name)


def as_text(content: Mapping[str, Any]) -> str:
    """Return a document as text: machine, steps, tables, claims."""
    machine = content["machine"]
    gpus = "; ".join(machine["gpus"]) or "no GPU"
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    lines = [f"gpu{' --dry-run' if content['quick'] else ''}, {machine['date']}, {gpus}, {machine['cpu']}, "]
    lines[0] += f"{machine['cores']} cores, Python {machine['python']}, {packages}"
    lines += [f"absent: {', '.join(machine['absent']) or 'nothing'}", ""]
    titles = {step.name: step.title for step in STEPS}
    measured: Mapping[str, Any] = content["measured"]
    steps = [
        [name, titles.get(name, ""), each["status"], f"{each['seconds']:.0f}", each["reason"][:160]]
        for name, each in measured.items()
    ]
    lines += [table_text("steps", ["step", "what", "status", "s", "reason"], steps), ""]
    for each in measured.values():
        for table in each["tables"]:
            lines += [table_text(table["title"], table["columns"], table["rows"]), ""]
        for name, why in each["measured"].get("failed cases", {}).items():
            lines += [f"failed: {name}: {why}", ""]
    rows = [
        [
            each["name"],
            each["paper"] or "-",
            each["goal"],
            NOT_MEASURED if each["measured"] is None else f"{each['measured']:.4g}",
            "-" if each["holds"] is None else "yes" if each["holds"] else "NO",
        ]
        for each in content["claims"]
    ]
    return "\n".join([*lines, table_text("claims", ["name", "paper", "goal", "measured", "holds"], rows), ""])


def table_text(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as aligned text."""
    widths = [max(len(row[index]) for row in [columns, *rows]) for index in range(len(columns))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    head = "  ".join(cell.ljust(width) for cell, width in zip(columns, widths, strict=True)).rstrip()
    return "\n".join([title, head, "-" * len(head), *lines])
