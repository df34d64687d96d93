"""Triton backend `pets`: many fine-tuned tasks on one frozen encoder. A thin adapter of `tidal.pets` to Triton."""

from __future__ import annotations

from tidal.triton.config import TensorConfig, complete_config

INPUTS = (
    TensorConfig("text_input", "TYPE_STRING", (1,), optional=True),
    TensorConfig("text_pair", "TYPE_STRING", (1,), optional=True),
    TensorConfig("input_ids", "TYPE_INT64", (-1,), optional=True),
    TensorConfig("attention_mask", "TYPE_INT64", (-1,), optional=True),
    TensorConfig("token_type_ids", "TYPE_INT64", (-1,), optional=True),
)
OUTPUTS = (
    TensorConfig("logits", "TYPE_FP32", (-1,)),
    TensorConfig("probabilities", "TYPE_FP32", (-1,)),
    TensorConfig("label", "TYPE_STRING", (1,)),
)


class TritonPythonModel:
    """What Triton calls."""

    @staticmethod
    def auto_complete_config(config):
        """Give a config.pbtxt of one line its tensors."""
        return complete_config(config, INPUTS, OUTPUTS)

    def initialize(self, args):
        """Open the published base and start its service."""
        from tidal.pets.loading import load
        from tidal.pets.parameters import PetsParameters
        from tidal.triton.host import BackendHost

        self._host = BackendHost(args, system="pets", parameters=PetsParameters, load=load)

    def execute(self, requests):
        """Take requests over; they are answered later."""
        return self._host.execute(requests)

    def finalize(self):
        """Drain and end."""
        self._host.finalize()
