"""Triton backend `arlo`: encoders for inputs of varying length; an adapter of `tidal.arlo`."""

from __future__ import annotations

from tidal.triton.config import TensorConfig, complete_config, published_task

INPUTS = (
    TensorConfig("text_input", "TYPE_STRING", (1,), optional=True),
    TensorConfig("text_pair", "TYPE_STRING", (1,), optional=True),
    TensorConfig("input_ids", "TYPE_INT64", (-1,), optional=True),
    TensorConfig("attention_mask", "TYPE_INT64", (-1,), optional=True),
    TensorConfig("token_type_ids", "TYPE_INT64", (-1,), optional=True),
)
FACTS = (
    TensorConfig("max_length", "TYPE_INT32", (1,)),
    TensorConfig("input_tokens", "TYPE_INT32", (1,)),
)


def _outputs():
    """Yield the outputs of the published version's task; a config that has its own outputs imports nothing."""
    from tidal.encoder_tasks.entries import TASKS

    entry = TASKS.get(published_task() or "", TASKS["classification"])
    yield from (TensorConfig(each.name, each.data_type, each.dims) for each in entry.outputs)
    yield from FACTS


class TritonPythonModel:
    """The model class that Triton instantiates."""

    @staticmethod
    def auto_complete_config(config):
        """Add the inputs and outputs to a minimal config.pbtxt: those of the published version's task."""
        return complete_config(config, INPUTS, _outputs())

    def initialize(self, args):
        """Open the published version and start its service."""
        from tidal.arlo.loading import load
        from tidal.arlo.parameters import ArloParameters
        from tidal.triton.host import BackendHost

        self._host = BackendHost(args, system="arlo", parameters=ArloParameters, load=load)

    def execute(self, requests):
        """Accept requests; return the answers that arrive soon, None for those that are sent later."""
        return self._host.execute(requests)

    def finalize(self):
        """Answer the accepted requests and stop."""
        self._host.finalize()
