"""Triton backend `otas`: a vision transformer for many tasks that adds or merges tokens per batch. A thin adapter."""

from __future__ import annotations

from tidal.triton.config import TensorConfig, complete_config

INPUTS = (
    TensorConfig("image", "TYPE_STRING", (1,), optional=True),
    TensorConfig("pixel_values", "TYPE_FP32", (-1, -1, -1), optional=True),
)
OUTPUTS = (
    TensorConfig("logits", "TYPE_FP32", (-1,)),
    TensorConfig("probabilities", "TYPE_FP32", (-1,)),
    TensorConfig("label", "TYPE_STRING", (1,)),
    TensorConfig("gamma", "TYPE_INT32", (1,)),
    TensorConfig("input_tokens", "TYPE_INT32", (1,)),
    TensorConfig("queue_ms", "TYPE_FP32", (1,)),
)


class TritonPythonModel:
    """Entry points that Triton calls."""

    @staticmethod
    def auto_complete_config(config):
        """Add the tensors that a config.pbtxt lacks."""
        return complete_config(config, INPUTS, OUTPUTS)

    def initialize(self, args):
        """Open the published model and start its service."""
        from tidal.otas.loading import load
        from tidal.otas.parameters import OtasParameters
        from tidal.triton.host import BackendHost

        self._host = BackendHost(args, system="otas", parameters=OtasParameters, load=load)

    def execute(self, requests):
        """Accept requests; return the answers that arrive soon, None for those that are sent later."""
        return self._host.execute(requests)

    def finalize(self):
        """Answer the open requests and end the service."""
        self._host.finalize()
