"""A front with another dispatcher as a model of Triton's Python backend; it imports the `dispatchers.py` next to it."""

from typing import Any


class TritonPythonModel:
    """The interface that Triton calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Start the front."""
        from dispatchers import DispatcherParameters, load

        from tidal.triton.host import BackendHost

        self._host = BackendHost(args, system="arlo", parameters=DispatcherParameters, load=load)

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Accept requests; return the answers that arrive soon, None for those that are sent later."""
        return self._host.execute(requests)

    def finalize(self) -> None:
        """Drain and stop."""
        self._host.finalize()
