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


class PendingAnswer(Protocol):
    """A request that has been sent."""

    def result(self) -> dict[str, Array]:
        """Wait for the answer and return its arrays; called once.

        Raises:
            CallFailed: There is no answer.
        """
        ...


class NodeChannel(Protocol):
    """Connections to a server, for any thread."""

    def infer(self, request: InferRequest, version: int, timeout_s: float) -> dict[str, Array]:
        """Send one request and wait for the answer.

        Args:
            request: The request, of numbers only.
            version: Version of the model.
            timeout_s: Longest time until the answer, in seconds.

        Raises:
            CallFailed: There is no answer.
        """
        ...

    def start(self, request: InferRequest, version: int, timeout_s: float) -> PendingAnswer | None:
        """Send one request if that takes no time: over a connection that is open and idle.

        Args:
            request: See `infer`.
            version: See `infer`.
            timeout_s: See `infer`.

        Returns:
            The answer to wait for; None if nothing was sent.

        Raises:
            CallFailed: The connection broke.
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

    def close_idle(self) -> None:
        """Close the connections that carry no call, since the server may be gone."""
        ...

    def close(self) -> None:
        """Close the connections; calls that run fail."""
        ...
