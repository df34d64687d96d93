"""LitServe around the OpenVINO model, with its own batching."""

from __future__ import annotations

import json
import sys

import litserve
import numpy as np
from fastapi import Response
from openvino_encoder import Encoder


class EncoderApi(litserve.LitAPI):
    """Encodes the rows of a request, or of a batch of requests.

    Args:
        settings: Settings of the server.
    """

    def __init__(self, settings: dict) -> None:
        super().__init__(settings["max_batch"], settings["wait_s"], api_path="/encode")
        self._settings = settings

    def setup(self, device: str) -> None:
        """Open the model in a worker process."""
        self._encoder = Encoder(self._settings, self._settings["threads"])

    def decode_request(self, request: dict) -> list:
        """Return the rows of a request."""
        return request["rows"]

    def batch(self, inputs: list) -> list:
        """Return the requests as they are: `predict` joins their rows."""
        return inputs

    def predict(self, inputs: list) -> list:
        """Return the values of each request; without batching there is one."""
        requests = inputs if self._settings["max_batch"] > 1 else [inputs]
        found = self._encoder.infer([row for rows in requests for row in rows])
        return np.split(found, np.cumsum([len(rows) for rows in requests])[:-1])

    def unbatch(self, output: list) -> list:
        """Return the values of each request."""
        return output

    def encode_response(self, output: object) -> Response:
        """Return the bytes of a request's values."""
        values = output[0] if isinstance(output, list) else output
        return Response(values.tobytes(), media_type="application/octet-stream")


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    workers = {"accelerator": "cpu", "workers_per_device": given["workers"]}
    server = litserve.LitServer(EncoderApi(given), timeout=False, **workers)
    server.run("127.0.0.1", given["port"], num_api_servers=1, log_level="warning", generate_client_file=False)
