"""Identifies the processor or GPU that an engine was built for, so that it never runs on another one unnoticed."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from tidal.errors import Unsupported

DeviceKind = Literal["cpu", "gpu"]

# Instruction sets that change which kernels an engine uses, and so its latency and rounding.
_ISA = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "asimd", "sve", "bf16")


class Device(BaseModel):
    """A processor or GPU. Equal devices may run each other's engines.

    Attributes:
        kind: `cpu` or `gpu`.
        name: Name of the product.
        features: Instruction sets of a processor; the compute capability of a GPU. The driver of a GPU
            is left out: engines run with every driver that their libraries accept, so that an update of it makes no
            version stale.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: DeviceKind
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


@cache
def gpu() -> Device:
    """The first GPU that this process may use, according to `CUDA_VISIBLE_DEVICES`.

    Raises:
        Unsupported: There is none, or no driver for it; contains CUDA's reason.
    """
    try:
        from cuda.bindings import runtime
    except ImportError:
        raise Unsupported(
            "a GPU requires cuda-bindings, which is not installed: pip install 'cuda-bindings>=12.9.1'"
        ) from None
    _, driver = runtime.cudaDriverGetVersion()
    if driver == 0:
        raise Unsupported("no NVIDIA GPU can be used here: no NVIDIA driver is installed")
    status, properties = runtime.cudaGetDeviceProperties(0)
    if status != runtime.cudaError_t.cudaSuccess:
        _, reason = runtime.cudaGetErrorString(status)
        raise Unsupported(f"no NVIDIA GPU can be used here: {reason.decode()}")
    return Device(
        kind="gpu",
        name=properties.name.split(b"\0")[0].decode(),
        features=(f"compute capability {properties.major}.{properties.minor}",),
    )


def has_gpu() -> bool:
    """Whether this process may use a GPU."""
    try:
        gpu()
    except Unsupported:
        return False
    return True


def here(kind: DeviceKind) -> Device:
    """This machine's device of a kind.

    Raises:
        Unsupported: This machine has no GPU that can be used.
    """
    return gpu() if kind == "gpu" else cpu()


def library_version(distribution: str) -> str | None:
    """Installed version of a Python distribution; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
