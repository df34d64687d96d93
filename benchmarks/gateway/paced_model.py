"""A decoder for the benchmark: it streams `max_tokens` tokens, `pause_ms` apart, and computes nothing."""

import json
import threading
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Streams of all requests run at once, each in a thread."""

    def execute(self, requests: list[Any]) -> None:
        """Begin the streams of some requests."""
        for request in requests:
            options = json.loads(request.parameters() or "{}")
            threading.Thread(target=self._stream, args=(request.get_response_sender(), options)).start()

    def _stream(self, sender: Any, options: dict[str, Any]) -> None:
        count, pause_s = int(options["max_tokens"]), float(options.get("top_k", 0)) / 1e3
        due = time.monotonic()
        for number in range(count):
            due += pause_s
            time.sleep(max(0.0, due - time.monotonic()))
            last = number == count - 1
            outputs = [
                pb_utils.Tensor("index", np.array([0], np.int32)),
                pb_utils.Tensor("text_output", np.array([b" word"], object)),
                pb_utils.Tensor("token_ids", np.array([7], np.int64)),
            ]
            if last:
                outputs += [
                    pb_utils.Tensor("finish_reason", np.array([b"length"], object)),
                    pb_utils.Tensor("prompt_tokens", np.array([3], np.int32)),
                    pb_utils.Tensor("generated_tokens", np.array([count], np.int32)),
                ]
            flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0
            sender.send(pb_utils.InferenceResponse(outputs), flags=flags)
