"""Triton backend `otas`: a vision transformer of many tasks that adds or merges tokens a batch. A thin adapter."""

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
    TensorConfig("queue_ms", "TYPE_FP32", (1,)),
)


class TritonPythonModel:
    """What Triton calls."""

    @staticmethod
    def auto_complete_config(config):
        """Give a config.pbtxt of one line its tensors."""
        return complete_config(config, INPUTS, OUTPUTS)

    def initialize(self, args):
        """Open the published model and start its service."""
        from tidal.otas.loading import load
        from tidal.otas.parameters import OtasParameters
        from tidal.triton.host import BackendHost

        self._host = BackendHost(args, system="otas", parameters=OtasParameters, load=load)

    def execute(self, requests):
        """Take requests over; they are answered later."""
        return self._host.execute(requests)

    def finalize(self):
        """Drain and end."""
        self._host.finalize()
