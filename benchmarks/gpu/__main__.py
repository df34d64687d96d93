"""`python -m benchmarks.gpu --minutes 9 --out DIR [--dry-run]`: everything that a GPU can show in one short visit."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.gpu import document
from benchmarks.gpu.machine import describe_machine, install_carried, missing
from benchmarks.gpu.running import StepResult, run_step, step_command
from benchmarks.gpu.steps import STEPS, Step

# A step that would get less time than this is not started.
_LEAST_S = 5.0


def main(arguments: list[str] | None = None) -> int:
    """Run the steps; return 0 if none failed or timed out, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--minutes", type=float, default=9.0, help="time of all steps together (default: 9)")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--dry-run", action="store_true", help="run every step on the CPU with tiny sizes")
    parser.add_argument("--steps", nargs="+", choices=[step.name for step in STEPS], help="only these steps")
    parser.add_argument("--wheels", type=Path, help="folder with wheels; those of missing libraries are installed")
    options = parser.parse_args(arguments)
    ends_at = time.monotonic() + options.minutes * 60
    folder: Path = options.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if options.wheels is not None:
        _use_wheels(options.wheels, folder / "packages")
    machine = describe_machine()
    _say(f"GPUs: {'; '.join(machine['gpus']) or 'none'}; absent: {', '.join(machine['absent']) or 'nothing'}")
    results: dict[str, StepResult] = {}
    for step in STEPS:
        if options.steps and step.name not in options.steps:
            continue
        _say(f"{step.name}: {step.title}")
        results[step.name] = result = _run(step, folder, ends_at, machine, dry_run=options.dry_run)
        _say(f"{step.name}: {result.status} after {result.seconds:.0f} s{result.reason and ': ' + result.reason}")
        document.write(folder, document.document(machine, results, dry_run=options.dry_run))
    print((folder / "gpu.txt").read_text(encoding="utf-8"))
    return int(any(result.status in ("failed", "timed out") for result in results.values()))


def _run(step: Step, folder: Path, ends_at: float, machine: Mapping[str, object], *, dry_run: bool) -> StepResult:
    if absent := missing(step.requires):
        return StepResult("skipped", reason=f"not installed: {', '.join(absent)}")
    if not dry_run and not machine["gpus"]:
        return StepResult("skipped", reason="nvidia-smi shows no GPU here; accepted without one: --dry-run")
    left = ends_at - time.monotonic()
    if left < _LEAST_S:
        return StepResult("skipped", reason="no time is left: raise --minutes, or name the step in --steps")
    return run_step(step_command(step, folder, dry_run=dry_run), step.name, folder, min(step.limit_s, left))


def _use_wheels(wheels: Path, target: Path) -> None:
    problem = install_carried(str(wheels), str(target))
    if problem is not None:
        _say(f"wheels: {problem}")
    # Only what the machine lacks is in this folder: its own torch fits its driver.
    sys.path.append(str(target))
    known = [path for path in (os.environ.get("PYTHONPATH"), str(target)) if path]
    os.environ["PYTHONPATH"] = os.pathsep.join(known)


def _say(text: str) -> None:
    print(f".. {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
