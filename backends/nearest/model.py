"""Triton backend `nearest`: the texts of a file that are nearest to an embedding. A thin adapter of `tidal.nearest`."""

from __future__ import annotations

from tidal.triton.config import TensorConfig, complete_config

# Without a batch axis, since one query has several texts as its answer: an ensemble passes shapes on as they are.
INPUTS = (TensorConfig("embedding", "TYPE_FP32", (1, -1)), TensorConfig("text_input", "TYPE_STRING", (1, 1)))
OUTPUTS = (
    TensorConfig("query", "TYPE_STRING", (-1, 1)),
    TensorConfig("text", "TYPE_STRING", (-1, 1)),
    TensorConfig("similarity", "TYPE_FP32", (-1, 1)),
    TensorConfig("index", "TYPE_INT32", (-1, 1)),
)


class TritonPythonModel:
    """The interface that Triton calls."""

    @staticmethod
    def auto_complete_config(config):
        """Add the tensors to a minimal config.pbtxt."""
        return complete_config(config, INPUTS, OUTPUTS, batched=False)

    def initialize(self, args):
        """Read the texts and their vectors."""
        from tidal.nearest.parameters import NearestParameters
        from tidal.nearest.service import load
        from tidal.triton.host import BackendHost

        self._host = BackendHost(args, system="nearest", parameters=NearestParameters, load=load)

    def execute(self, requests):
        """Accept requests; return the answers that arrive soon, None for those that are sent later."""
        return self._host.execute(requests)

    def finalize(self):
        """Answer the accepted requests, then stop the service."""
        self._host.finalize()
