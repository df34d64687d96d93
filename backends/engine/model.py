"""Triton backend `engine`: runs one compiled engine on padded tokens. A thin adapter of `tidal.engine_model`."""

from __future__ import annotations

from tidal.triton.config import TensorConfig, complete_config

INPUTS = (
    TensorConfig("input_ids", "TYPE_INT64", (-1,)),
    TensorConfig("attention_mask", "TYPE_INT64", (-1,)),
    TensorConfig("token_type_ids", "TYPE_INT64", (-1,), optional=True),
)
OUTPUTS = (TensorConfig("logits", "TYPE_FP32", (-1,)),)


class TritonPythonModel:
    """Entry points that Triton calls."""

    @staticmethod
    def auto_complete_config(config):
        """Add the tensors that a config.pbtxt lacks."""
        return complete_config(config, INPUTS, OUTPUTS, dynamic_batching=False)

    def initialize(self, args):
        """Open the published version."""
        from tidal.triton.engine_host import EngineHost

        self._host = EngineHost(args)

    def execute(self, requests):
        """Answer requests and return the responses."""
        return self._host.execute(requests)

    def finalize(self):
        """Release the core or GPU."""
        self._host.finalize()
