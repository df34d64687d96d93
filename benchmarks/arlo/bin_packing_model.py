"""The INFaaS-like front as a model of Triton's Python backend; `bin_packing.py` lies beside it."""


class TritonPythonModel:
    """What Triton calls."""

    def initialize(self, args):
        """Start the front."""
        from bin_packing import BinPackingParameters, load

        from tidal.triton.host import BackendHost

        self._host = BackendHost(args, system="arlo", parameters=BinPackingParameters, load=load)

    def execute(self, requests):
        """Take requests over; they are answered later."""
        return self._host.execute(requests)

    def finalize(self):
        """Drain and end."""
        self._host.finalize()
