"""An emulated device as a model of Triton's Python backend: it waits as long as its profile says, and answers zeros.

This file is copied into the model repository, with `latencies.json` next to it: seconds by length in tokens, and the
number of labels.
"""

import json
import time
from pathlib import Path
from typing import Any


class TritonPythonModel:
    """The interface that Triton calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the profile."""
        profile = json.loads((Path(__file__).parent / "latencies.json").read_text())
        self._seconds, self._labels = profile["seconds"], profile["labels"]

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer one request after another, each after the time that its longest row takes."""
        import numpy as np
        import triton_python_backend_utils as pb_utils

        responses = []
        for request in requests:
            end = time.perf_counter()
            mask = pb_utils.get_input_tensor_by_name(request, "attention_mask").as_numpy()
            end += self._seconds[int(mask.sum(axis=1).max())]
            logits = np.zeros((len(mask), self._labels), np.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("logits", logits)]))
            time.sleep(max(0.0, end - time.perf_counter()))
        return responses
