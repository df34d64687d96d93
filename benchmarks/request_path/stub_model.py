"""A model of Triton's Python backend that times its own calls of the stub and does nothing else.

Loaded by Triton as `<model>/1/model.py`. The parameter `answers` selects whether it returns its answers as a `list` or
sends them (`senders`). It answers the median time of each call so far, in µs, in the order of `CALLS`.
"""

import json
import statistics
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

CALLS = ("input", "as_numpy", "tensor", "tensor_label", "response", "sender", "send")


class TritonPythonModel:
    """Model whose answer is what its calls cost."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the parameters."""
        parameters = {k: v["string_value"] for k, v in json.loads(args["model_config"])["parameters"].items()}
        self.sends = parameters["answers"] == "senders"
        self.times: dict[str, list[float]] = {name: [] for name in CALLS}
        self.label = np.array([[b"positive"]], object)

    def timed(self, name: str, call: Any, *arguments: Any, **options: Any) -> Any:
        """Call and note how long it took."""
        begin = time.perf_counter_ns()
        found = call(*arguments, **options)
        self.times[name].append((time.perf_counter_ns() - begin) / 1e3)
        return found

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Answer each request with the medians."""
        medians = [statistics.median(self.times[name][-1000:] or [0.0]) for name in CALLS]
        values = np.array([medians], np.float32)
        responses = []
        for request in requests:
            tensor = self.timed("input", pb_utils.get_input_tensor_by_name, request, "text_input")
            self.timed("as_numpy", tensor.as_numpy)
            outputs = [
                self.timed("tensor", pb_utils.Tensor, "microseconds", values),
                self.timed("tensor_label", pb_utils.Tensor, "label", self.label),
            ]
            response = self.timed("response", pb_utils.InferenceResponse, outputs)
            if not self.sends:
                responses.append(response)
                continue
            sender = self.timed("sender", request.get_response_sender)
            self.timed("send", sender.send, response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None if self.sends else responses
