"""A trivial Python model: answers its input after sleeping as many seconds as it says."""

import tempfile
import time
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> list[Any]:
        responses = []
        for request in requests:
            seconds = pb_utils.get_input_tensor_by_name(request, "SECONDS").as_numpy()
            if seconds.max() > 0:
                Path(tempfile.gettempdir(), "busy").touch()  # tells a test that its request has arrived
            time.sleep(float(seconds.max()))
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SLEPT", seconds)]))
        return responses
