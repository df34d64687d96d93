"""Triton backend `flover`: generations that share every decode step, streamed; a thin adapter of `tidal.flover`."""

from __future__ import annotations

from tidal.triton.config import TensorConfig, complete_config

INPUTS = (
    TensorConfig("text_input", "TYPE_STRING", (-1,), optional=True),
    TensorConfig("input_ids", "TYPE_INT64", (-1,), optional=True),
    TensorConfig("messages", "TYPE_STRING", (1,), optional=True),
    TensorConfig("tools", "TYPE_STRING", (1,), optional=True),
    TensorConfig("stream", "TYPE_BOOL", (1,), optional=True),
)
OUTPUTS = (
    TensorConfig("index", "TYPE_INT32", (-1,)),
    TensorConfig("text_output", "TYPE_STRING", (-1,)),
    TensorConfig("token_ids", "TYPE_INT64", (-1,)),
    TensorConfig("finish_reason", "TYPE_STRING", (-1,)),
    TensorConfig("logprobs", "TYPE_FP32", (-1,)),
    TensorConfig("token_texts", "TYPE_STRING", (-1,)),
    TensorConfig("top_token_ids", "TYPE_INT64", (-1, -1)),
    TensorConfig("top_logprobs", "TYPE_FP32", (-1, -1)),
    TensorConfig("top_token_texts", "TYPE_STRING", (-1, -1)),
    TensorConfig("prompt_tokens", "TYPE_INT32", (-1,)),
    TensorConfig("cached_tokens", "TYPE_INT32", (-1,)),
    TensorConfig("generated_tokens", "TYPE_INT32", (-1,)),
)


class TritonPythonModel:
    """The model as Triton calls it."""

    @staticmethod
    def auto_complete_config(config):
        """Add the tensors to a minimal config.pbtxt."""
        return complete_config(config, INPUTS, OUTPUTS, decoupled=True)

    def initialize(self, args):
        """Open the published model and start its service."""
        from tidal.flover.loading import load
        from tidal.flover.parameters import FloverParameters
        from tidal.triton.host import BackendHost

        self._host = BackendHost(args, system="flover", parameters=FloverParameters, load=load)

    def execute(self, requests):
        """Accept requests; they are answered later."""
        return self._host.execute(requests)

    def finalize(self):
        """Finish open requests, then stop."""
        self._host.finalize()
