"""Returns the number of the `execute` call of a request; one that begins with -1 waits for the removal of a file."""

import json
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.gate = Path(json.loads(args["model_config"])["parameters"]["gate"]["string_value"])
        self.executions = 0

    def execute(self, requests):
        self.executions += 1
        tokens = [pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy() for request in requests]
        if tokens[0][0, 0] == -1:
            self.gate.with_suffix(".reached").touch()
            while self.gate.exists():
                time.sleep(0.002)
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("execution", np.full((len(each), 1), self.executions, np.int32))]
            )
            for each in tokens
        ]
