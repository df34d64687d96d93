"""How much memory there is to allocate."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

_GROUP = Path("/sys/fs/cgroup")


def available_bytes(device: torch.device) -> int:
    """What may be allocated on a device now: of a GPU its free memory, else the machine's, or what this container
    may still take of it."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    machine = int(psutil.virtual_memory().available)
    try:
        limit, used = ((_GROUP / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        return machine if limit == "max" else min(machine, max(0, int(limit) - int(used)))
    except (OSError, ValueError):
        return machine
