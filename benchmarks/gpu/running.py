"""Runs one step in a process of its own, within a time limit, and collects what it recorded."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpu.steps import Step

Status = Literal["done", "failed", "timed out", "skipped"]
ROOT = Path(__file__).parents[2]
# Folders that Tidal's packages lie in, for a machine without an installed Tidal.
SOURCES = ("backends", "builders", "client", "gateway", ".")
_LOG_TAIL = 2000


@dataclass(frozen=True, slots=True)
class StepResult:
    """The end of one step.

    Attributes:
        status: Outcome of the step.
        seconds: Its duration.
        reason: Why it was skipped or how it failed; empty if it is done.
        measured: Recorded values, also of a step that failed or ran out of time.
        claims: Figures by name of the claim.
        tables: Tables to print.
    """

    status: Status
    seconds: float = 0.0
    reason: str = ""
    measured: Mapping[str, Any] = field(default_factory=dict)
    claims: Mapping[str, float] = field(default_factory=dict)
    tables: Sequence[Mapping[str, Any]] = ()

    def document(self) -> dict[str, Any]:
        """Return the result as plain values."""
        return asdict(self)


def step_command(step: Step, folder: Path, *, dry_run: bool) -> list[str]:
    """Return the command of a step's process."""
    dry = ["--dry-run"] if dry_run else []
    return [sys.executable, "-m", "benchmarks.gpu.child", step.name, "--out", str(folder), *dry]


def run_step(command: Sequence[str], name: str, folder: Path, limit_s: float) -> StepResult:
    """Run a step's process until it ends or its time is over; then it is killed with all that it started.

    Args:
        command: Command of the process.
        name: Name of the step; it records into `<name>.json` and prints into `<name>.log` of the folder.
        folder: Folder of the results.
        limit_s: Longest duration in seconds.
    """
    recorded, log = folder / f"{name}.json", folder / f"{name}.log"
    recorded.unlink(missing_ok=True)
    paths = [str(ROOT / source) for source in SOURCES] + [p for p in (os.environ.get("PYTHONPATH"),) if p]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
    # Steps reuse what an earlier one compiled. Without a compiler, torch runs the dynamic engine as it is.
    environment |= {"TORCHINDUCTOR_CACHE_DIR": str(folder / "work" / "inductor"), "TORCHDYNAMO_SUPPRESS_ERRORS": "1"}
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            code: int | None = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    seconds = round(time.monotonic() - began, 2)
    found = _read(recorded)
    if code is None:
        return StepResult("timed out", seconds, f"not finished after {limit_s:.0f} s", **found)
    if code != 0:
        return StepResult("failed", seconds, f"exit code {code}: {_tail(log)}", **found)
    return StepResult("done", seconds, **found)


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {name: found[name] for name in ("measured", "claims", "tables") if name in found}


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL:].strip().splitlines()
    return lines[-1] if lines else "it printed nothing"
