"""What machine an engine was built for, so that it is never run on another unnoticed."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata
from pathlib import Path

from pydantic import BaseModel, ConfigDict

# Instruction sets that change which kernels an engine picks, and so its latency and its rounding.
_ISA = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "asimd", "sve", "bf16")


class Device(BaseModel):
    """A processor by what matters for a compiled engine. Equal devices may run each other's engines."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str  # "cpu" or "gpu"
    name: str
    features: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(self.features)})" if self.features else self.name


@cache
def cpu() -> Device:
    """This machine's processor."""
    name, flags = platform.processor() or platform.machine(), set[str]()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() in ("flags", "Features"):
                flags = set(value.split())
                break
    return Device(kind="cpu", name=name, features=tuple(flag for flag in _ISA if flag in flags))


def library_version(distribution: str) -> str | None:
    """Installed version of a Python distribution, or None when it is absent."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
