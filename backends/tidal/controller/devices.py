"""The devices of a server's host, and the number of a model's instances that they can hold."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tidal.controller.fronts import ServedFront
from tidal.gpus import VISIBLE_VARIABLE, gpus_named, visible_gpus


@dataclass(frozen=True, slots=True)
class HostDevices:
    """Devices that a server may use.

    Attributes:
        cores: Number of processor cores.
        gpus: Number of GPUs.
    """

    cores: int
    gpus: int

    @classmethod
    def of_process(cls, pid: int) -> HostDevices:
        """Return the devices of a process: the cores that it may run on, and the GPUs of its environment.

        Raises:
            OSError: The process has ended.
        """
        cores = len(os.sched_getaffinity(pid))
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except PermissionError:  # a container may have more capabilities than this process
            return cls(cores, len(visible_gpus()))
        named = next((each for each in variables if each.startswith(f"{VISIBLE_VARIABLE}=".encode())), None)
        return cls(cores, len(gpus_named(None if named is None else named.decode(errors="replace").partition("=")[2])))

    def instances(self, front: ServedFront, others: Iterable[tuple[ServedFront, int]]) -> int | None:
        """Return how many instances of a model these devices hold beside those of other models, at least 1 (G).

        Args:
            front: The model.
            others: The other partitioned models of the server, each with its number of instances.

        Returns:
            None if no device of the model's kind is known.
        """
        devices = self.gpus if front.kind == "gpu" else self.cores
        if not devices:
            return None
        occupied = sum(other.share * count for other, count in others if other.kind == front.kind)
        return max(1, int((devices - occupied) // front.share))
