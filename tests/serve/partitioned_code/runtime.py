"""A runtime for tests, synchronous like the `engine` backend: sleeps, then returns its length and version."""

import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        name = json.loads(args["model_config"])["name"]
        self.ran = np.array([int(name.rpartition("_len")[2]), int(args["model_version"])], dtype=np.int32)

    def execute(self, requests):
        responses = []
        for request in requests:
            seconds = pb_utils.get_input_tensor_by_name(request, "SECONDS").as_numpy()
            if seconds.max() >= 1:
                Path(tempfile.gettempdir(), f"busy-{os.getpid()}").touch()  # signals that the request is running
            time.sleep(float(seconds.max()))
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("RAN", self.ran)]))
        return responses
