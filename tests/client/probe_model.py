"""A model for tests of clients on a real tritonserver: the text of a request's first row selects the behaviour.

`error CODE MESSAGE` fails with that code, `raise` raises, `sleep SECONDS` answers late and logs the request's id to the
file `log_file` (a parameter of the model) on arrival and on cancellation; anything else is answered at once.
Logits are functions of each row's text, so that exchanged rows are detected.
"""

import json
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

LABELS = (b"short", b"long")


def _outputs(request):
    rows = [bytes(v) for v in pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().reshape(-1)]
    pairs = pb_utils.get_input_tensor_by_name(request, "text_pair")
    paired = [b""] * len(rows) if pairs is None else [bytes(v) for v in pairs.as_numpy().reshape(-1)]
    lengths = np.array([len(row.decode()) + len(pair.decode()) for row, pair in zip(rows, paired, strict=True)])
    logits = np.stack([10.0 - lengths, lengths - 10.0], axis=1).astype(np.float32)
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    asked = {"parameters": json.loads(request.parameters()), "id": request.request_id()}
    found = {
        "logits": logits,
        "probabilities": exponentials / exponentials.sum(axis=1, keepdims=True),
        "label": np.array([[LABELS[i]] for i in logits.argmax(axis=1)], dtype=object),
        "max_length": (np.ceil(lengths / 16).astype(np.int32) * 16)[:, None],
        "asked": np.array([[json.dumps(asked).encode()]] * len(rows), dtype=object),
        "echo": np.array([[row + b"|" + pair] for row, pair in zip(rows, paired, strict=True)], dtype=object),
        "rows": np.full((len(rows), 1), len(rows), dtype=np.int32),
    }
    wanted = request.requested_output_names()
    return [pb_utils.Tensor(name, value) for name, value in found.items() if name in wanted]


class TritonPythonModel:
    def initialize(self, args):
        self.log_file = json.loads(args["model_config"])["parameters"]["log_file"]["string_value"]

    def execute(self, requests):
        for request in requests:
            text = bytes(pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().reshape(-1)[0]).decode()
            command, _, rest = text.partition(" ")
            sender = request.get_response_sender()
            if command == "error":
                code, _, message = rest.partition(" ")
                error = pb_utils.TritonError(message, getattr(pb_utils.TritonError, code))
                self._send(sender, pb_utils.InferenceResponse(error=error))
            elif command == "raise":
                raise ValueError("boom")
            elif command == "sleep":
                answer = pb_utils.InferenceResponse(_outputs(request))
                threading.Thread(target=self._late, args=(sender, answer, request.request_id(), float(rest))).start()
            else:
                self._send(sender, pb_utils.InferenceResponse(_outputs(request)))

    def _late(self, sender, answer, request_id, seconds):
        self._log(f"received {request_id}")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if sender.is_cancelled():
                self._log(f"cancelled {request_id}")
                error = pb_utils.TritonError("the request was cancelled", pb_utils.TritonError.CANCELLED)
                answer = pb_utils.InferenceResponse(error=error)
                break
            time.sleep(0.02)
        self._send(sender, answer)

    def _log(self, line):
        with open(self.log_file, "a") as log:
            log.write(f"{line}\n")

    def _send(self, sender, response):
        sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
