"""An emulated device as a model of Triton's Python backend.

This file is copied into the model repository, with `emulated_device.py` and the profile `latencies.json` next to it.
"""

import time
from pathlib import Path
from typing import Any


class TritonPythonModel:
    """The interface that Triton calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the profile."""
        from emulated_device import EmulatedDevice

        self._device = EmulatedDevice(Path(__file__).parent / "latencies.json")

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer one request after another, each after the time that its longest row takes."""
        import triton_python_backend_utils as pb_utils

        responses = []
        for request in requests:
            began = time.perf_counter()
            mask = pb_utils.get_input_tensor_by_name(request, "attention_mask").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("logits", self._device.zeros(len(mask)))]))
            self._device.wait(int(mask.sum(axis=1).max()), began)
        return responses
