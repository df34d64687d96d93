"""`python -m benchmarks.gpu.child STEP --out DIR`: the process of one step."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from benchmarks.gpu.steps import STEPS, find_step


def main() -> int:
    """Measure one step; return exit code 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.child", description=__doc__)
    parser.add_argument("step", choices=[step.name for step in STEPS])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    step = find_step(arguments.step)
    from benchmarks.gpu.recording import Record, Setting

    record = Record(arguments.out / f"{step.name}.json")
    record.write()
    module = importlib.import_module(f"benchmarks.gpu.{step.name}")
    module.measure(Setting(arguments.out, arguments.dry_run), record)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
