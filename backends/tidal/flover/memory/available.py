"""Memory available on a device."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

_CONTROL_GROUP = Path("/sys/fs/cgroup")


def available_bytes(device: torch.device) -> int:
    """Return the bytes that can be allocated on a device now.

    On a GPU this is its free memory, else the machine's, limited by what the container's control group allows.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    machine = int(psutil.virtual_memory().available)
    try:
        limit, used = ((_CONTROL_GROUP / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        return machine if limit == "max" else min(machine, max(0, int(limit) - int(used)))
    except (OSError, ValueError):
        return machine
