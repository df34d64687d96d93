"""What the process of a step receives and records; the record is written after each value, so that none is lost."""

from __future__ import annotations

import json
import os
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy.typing as npt
import torch

from tidal.engines import Engine

Device = Literal["gpu", "cpu"]


@dataclass(frozen=True, slots=True)
class Setting:
    """How a step measures.

    Attributes:
        folder: Folder of the results; steps share files in its folder `work`.
        dry_run: Whether to run tiny sizes on the CPU, to see that everything runs.
    """

    folder: Path
    dry_run: bool

    @property
    def device(self) -> Device:
        """Device that engines run on."""
        return "cpu" if self.dry_run else "gpu"

    @property
    def torch_device(self) -> torch.device:
        """The same device as torch names it."""
        return torch.device("cpu" if self.dry_run else "cuda")

    def choose(self, full: Any, dry: Any) -> Any:
        """Return the size for a GPU, or the one of a dry run."""
        return dry if self.dry_run else full

    def work(self, name: str) -> Path:
        """Return a folder for files that several steps use; it exists."""
        folder = self.folder / "work" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder


@dataclass(slots=True)
class Record:
    """What a step has measured so far.

    Attributes:
        file: JSON file that is written after each change.
    """

    file: Path
    measured: dict[str, Any] = field(default_factory=dict)
    claims: dict[str, float] = field(default_factory=dict)
    tables: list[dict[str, Any]] = field(default_factory=list)

    def put(self, name: str, value: Any) -> None:
        """Record a value."""
        self.measured[name] = value
        self.write()

    def claim(self, name: str, value: float) -> None:
        """Record the figure of a claim."""
        self.claims[name] = value
        self.write()

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Record a table; a later one with the same title replaces it."""
        self.tables = [table for table in self.tables if table["title"] != title]
        self.tables.append({"title": title, "columns": list(columns), "rows": [list(row) for row in rows]})
        self.write()

    @contextmanager
    def case(self, name: str) -> Iterator[None]:
        """Let the rest of the step go on if one of its cases fails; the failure is recorded."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            failed = self.measured.setdefault("failed cases", {})
            failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]
            self.write()

    def write(self) -> None:
        """Write the file atomically."""
        content = {"measured": self.measured, "claims": self.claims, "tables": self.tables}
        aside = self.file.with_name(f".{self.file.name}.{os.getpid()}")
        aside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        aside.replace(self.file)


def wait_for(device: torch.device) -> None:
    """Wait until a device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def durations_ms(call: Callable[[], object], device: torch.device, *, seconds: float, least: int = 5) -> list[float]:
    """Return durations of calls in milliseconds, each with all its work on the device, after three that warm up.

    Args:
        call: Function to measure.
        device: Device that it runs on.
        seconds: Time to measure for, at least.
        least: Number of calls, at least.
    """
    for _ in range(3):
        call()
    wait_for(device)
    found: list[float] = []
    began = time.perf_counter()
    while len(found) < least or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        call()
        wait_for(device)
        found.append((time.perf_counter() - start) * 1e3)
    return found


def run_ms(setting: Setting, engine: Engine, inputs: Mapping[str, npt.NDArray[Any]], *, seconds: float) -> float:
    """Return the median duration of an engine's runs in milliseconds; see `durations_ms`."""
    return median_ms(lambda: engine.run(inputs), setting.torch_device, seconds=seconds)


def median_ms(call: Callable[[], object], device: torch.device, *, seconds: float, least: int = 5) -> float:
    """Return the median duration of calls in milliseconds; see `durations_ms`."""
    return statistics.median(durations_ms(call, device, seconds=seconds, least=least))
