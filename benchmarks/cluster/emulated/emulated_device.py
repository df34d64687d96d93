"""The engine of all emulated devices: it waits as long as a profile says, and computes zeros.

This file is copied next to models of Triton and replicas of Ray Serve, so it imports numpy alone.
"""

import json
import os
import time
from pathlib import Path

import numpy as np


class EmulatedDevice:
    """A device that waits.

    Args:
        profile: File with `seconds`, by length in tokens, and the number of `labels`. It is read again when it changes.
    """

    def __init__(self, profile: Path) -> None:
        self._profile, self._stamp = profile, -1
        self._seconds: list[float] = []
        self._labels = 0
        self._refresh()

    def zeros(self, rows: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """Return what the device computes, [rows, labels]."""
        return np.zeros((rows, self._labels), np.float32)

    def wait(self, tokens: int, began: float) -> None:
        """Wait until the device has computed.

        Args:
            tokens: Length of the longest row.
            began: When it began, as `time.perf_counter` returns it.
        """
        self._refresh()
        time.sleep(max(0.0, began + self._seconds[tokens] - time.perf_counter()))

    def _refresh(self) -> None:
        stamp = os.stat(self._profile).st_mtime_ns
        if stamp != self._stamp:
            profile = json.loads(self._profile.read_text())
            self._stamp, self._seconds, self._labels = stamp, profile["seconds"], profile["labels"]
