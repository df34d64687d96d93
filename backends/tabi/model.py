"""Triton backend `tabi`: cascades of classifiers. A thin adapter between `tidal.tabi` and Triton."""

from __future__ import annotations

from tidal.triton.config import TensorConfig, complete_config

INPUTS = (
    TensorConfig("text_input", "TYPE_STRING", (1,)),
    TensorConfig("text_pair", "TYPE_STRING", (1,), optional=True),
)
# Outputs of a classification; the builder writes those of a regression into its config.pbtxt.
OUTPUTS = (
    TensorConfig("label", "TYPE_STRING", (1,)),
    TensorConfig("probabilities", "TYPE_FP32", (-1,)),
    TensorConfig("level", "TYPE_INT32", (1,)),
    TensorConfig("confidence", "TYPE_FP32", (1,)),
    TensorConfig("degraded", "TYPE_BOOL", (1,)),
    TensorConfig("input_tokens", "TYPE_INT32", (1,)),
    TensorConfig("pruned_text", "TYPE_STRING", (1,)),
)


class TritonPythonModel:
    """The interface that Triton calls."""

    @staticmethod
    def auto_complete_config(config):
        """Add the tensors to a minimal config.pbtxt."""
        return complete_config(config, INPUTS, OUTPUTS)

    def initialize(self, args):
        """Read the published version and start its service."""
        from tidal.tabi.loading import load
        from tidal.tabi.parameters import TabiParameters
        from tidal.triton.host import BackendHost

        self._host = BackendHost(args, system="tabi", parameters=TabiParameters, load=load)

    def execute(self, requests):
        """Accept requests; return the answers that arrive soon, None for those that are sent later."""
        return self._host.execute(requests)

    def finalize(self):
        """Answer the accepted requests, then stop the service."""
        self._host.finalize()
