"""Triton backend `probe`: a trivial system whose service performs the action named by each request."""

from __future__ import annotations

from tidal.triton.config import TensorConfig, complete_config

INPUTS = (
    TensorConfig("action", "TYPE_STRING", (1,)),
    TensorConfig("value", "TYPE_INT32", (-1,), optional=True),
)
OUTPUTS = (
    TensorConfig("echo", "TYPE_STRING", (1,)),
    TensorConfig("rows", "TYPE_INT32", (1,)),
    TensorConfig("wanted", "TYPE_STRING", (1,)),
)


class TritonPythonModel:
    """What Triton calls."""

    @staticmethod
    def auto_complete_config(config):
        """Give a config.pbtxt of one line its tensors."""
        return complete_config(config, INPUTS, OUTPUTS)

    def initialize(self, args):
        """Start the service."""
        from probe_service import ProbeParameters, load

        from tidal.triton.host import BackendHost

        self._host = BackendHost(args, system="probe", parameters=ProbeParameters, load=load)

    def execute(self, requests):
        """Accept requests; return the answers that arrive soon, None for those that are sent later."""
        return self._host.execute(requests)

    def finalize(self):
        """Drain and stop."""
        self._host.finalize()
