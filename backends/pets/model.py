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


def _outputs():
    """Yield the outputs of all tasks that may share the encoder; a config that has its own imports nothing."""
    from tidal.pets.heads import shared_outputs

    yield from (TensorConfig(each.name, each.data_type, each.dims) for each in shared_outputs())


class TritonPythonModel:
    """What Triton calls."""

    @staticmethod
    def auto_complete_config(config):
        """Give a config.pbtxt of one line its tensors: the outputs of all tasks that may share the encoder."""
        return complete_config(config, INPUTS, _outputs())

    def initialize(self, args):
        """Open the published base and start its service."""
        from tidal.pets.loading import load
        from tidal.pets.parameters import PetsParameters
        from tidal.triton.host import BackendHost

        self._host = BackendHost(args, system="pets", parameters=PetsParameters, load=load)

    def execute(self, requests):
        """Accept requests; return the answers that arrive soon, None for those that are sent later."""
        return self._host.execute(requests)

    def finalize(self):
        """Drain and end."""
        self._host.finalize()
