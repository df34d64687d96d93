"""How a front calls the models of another node's server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tidal.requests import Array

if TYPE_CHECKING:
    from tidal_client.codec import InferRequest


class CallFailed(Exception):
    """A call that the model did not answer.

    Args:
        message: Text of the server's error, or of the connection's.
        timed_out: Whether there was no answer in time.
        unreachable: Whether a server that answers gives such an error only if it is about to end.
    """

    def __init__(self, message: str, *, timed_out: bool = False, unreachable: bool = False) -> None:
        super().__init__(message)
        self.timed_out, self.unreachable = timed_out, unreachable


class NodeChannel(Protocol):
    """Connections to a server. Any thread may call, and waits for the answer."""

    def infer(self, request: InferRequest, version: int, timeout_s: float) -> dict[str, Array]:
        """Run one request.

        Args:
            request: The request, of numbers only.
            version: Version of the model.
            timeout_s: Longest time to wait for the answer, in seconds.

        Raises:
            CallFailed: There is no answer.
        """
        ...

    def live(self, timeout_s: float) -> bool:
        """Whether the server answers that it is live.

        Args:
            timeout_s: Longest time to wait for the answer, in seconds.

        Raises:
            CallFailed: There is no answer.
        """
        ...

    def close(self) -> None:
        """Close the connections; calls that run fail."""
        ...
