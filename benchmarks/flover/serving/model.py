"""A baseline of Flover as a decoupled model of Triton's Python backend.

Loaded by Triton as `<model>/1/model.py`; the model's parameters select the baseline and its settings.
"""

import json
import sys
import threading
from typing import Any

import triton_python_backend_utils as pb_utils

_FAMILY = "benchmark_engine_calls_total"


class TritonPythonModel:
    """Passes requests to a baseline; one thread sends their tokens."""

    def initialize(self, args: dict[str, str]) -> None:
        """Create the baseline."""
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        sys.path.insert(0, parameters["code"])
        import numpy as np

        from benchmarks.flover.serving.opening import open_system
        from benchmarks.flover.serving.outbox import Outbox

        def send(sender: Any, tokens: list[int], finish: str) -> None:
            tensors = [pb_utils.Tensor("token_ids", np.array(tokens, np.int64))]
            if finish:
                tensors.append(pb_utils.Tensor("finish_reason", np.array([finish.encode()], object)))
            final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if finish else 0
            sender.send(pb_utils.InferenceResponse(tensors), flags=final)

        def refuse(sender: Any, message: str) -> None:
            response = pb_utils.InferenceResponse(error=pb_utils.TritonError(message))
            sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

        self._system = open_system(parameters)
        family = pb_utils.MetricFamily(_FAMILY, "Passes of the engine", kind=pb_utils.MetricFamily.COUNTER)
        metric, published = family.Metric(labels={"model": config["name"]}), 0
        self._kept = family

        def publish() -> None:
            nonlocal published
            calls = self._system.calls
            metric.increment(calls - published)
            published = calls

        self._outbox = Outbox(send, refuse, publish)
        self._thread = threading.Thread(target=self._outbox.run, name="outbox", daemon=True)
        self._thread.start()

    def execute(self, requests: list[Any]) -> None:
        """Accept requests; they are answered later."""
        for request in requests:
            prompt = pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy().reshape(-1)
            wanted = int(json.loads(request.parameters())["max_tokens"])
            self._system.submit(self._outbox.open(request.get_response_sender(), prompt, wanted))
        return

    def finalize(self) -> None:
        """Stop the baseline's threads."""
        self._system.close()
        self._outbox.close()
        self._thread.join(5)
