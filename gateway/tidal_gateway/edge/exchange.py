"""One HTTP request and what is known of its answer, for the access log and the metrics."""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidal_gateway.tracing import RequestTrace

#: Place of the `Exchange` in an ASGI scope.
SCOPE_KEY: Final = "tidal.exchange"
#: Place of a function in an ASGI scope that ends the connection at once.
ABORT_KEY: Final = "tidal.abort"
#: Place of a function in an ASGI scope that calls another one when the client disconnects, and returns its undoing.
WATCH_KEY: Final = "tidal.watch"
#: Place of a mark in an ASGI scope: the rest of the body is not valid HTTP and does not arrive.
BROKEN_KEY: Final = "tidal.broken"
#: Place of the connection's flow control in an ASGI scope: `send` waits only while its `write_paused` is true.
FLOW_KEY: Final = "tidal.flow"
#: Place of a mark in an ASGI scope: the whole body has arrived, so that `receive` does not wait for it.
COMPLETE_KEY: Final = "tidal.complete"
#: Status in log and metrics of a request whose client disconnected before the answer; such a client sees none.
DISCONNECTED: Final = 499

_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


@dataclass(slots=True)
class Exchange:
    """One HTTP request.

    Attributes:
        request_id: Id from `x-request-id`, or a new one; the servers' logs have it too.
        method: HTTP method.
        path: Path of the URL.
        client: Address of the client.
        began: Time of arrival, by `time.monotonic()`, in seconds.
        route: Name of the route; empty if there is none.
        model: Model, of those that exist; empty for none.
        task: Task of the model; empty for none.
        key: Id of the API key; empty for none.
        input_tokens: Number of tokens read.
        cached_tokens: Number of tokens read that the model did not compute again.
        output_tokens: Number of generated tokens.
        retries: Number of times that a part of the request was sent again.
        status: HTTP status of the answer; 0 before there is one.
        code: Short name of the error; empty for none.
        first_part_s: Seconds until the first part of a stream was sent.
        disconnected: Whether the client has disconnected.
        finished: Whether the last byte was sent.
        trace: Spans of the request; None if requests are not traced.
    """

    request_id: str
    method: str
    path: str
    client: str
    began: float = field(default_factory=time.monotonic)
    route: str = ""
    model: str = ""
    task: str = ""
    key: str = ""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    retries: int = 0
    status: int = 0
    code: str = ""
    first_part_s: float | None = None
    disconnected: bool = False
    finished: bool = False
    trace: RequestTrace | None = None

    def end_trace(self) -> None:
        """End the spans of the request, if there are any."""
        if self.trace is None:
            return
        attributes: dict[str, str | int] = {
            "http.response.status_code": self.status,
            "tidal.request_id": self.request_id,
            "tidal.model": self.model,
            "tidal.task": self.task,
            "tidal.retries": self.retries,
            "error.type": self.code,
            "gen_ai.usage.input_tokens": self.input_tokens,
            "gen_ai.usage.output_tokens": self.output_tokens,
        }
        self.trace.end(f"{self.method} {self.route}".rstrip(), self.status, attributes)

    def elapsed_s(self) -> float:
        """Seconds since arrival."""
        return time.monotonic() - self.began


def request_id(sent: str | None) -> str:
    """Return the id that a client sent if its form is accepted, else a new one."""
    return sent if sent is not None and _ID.fullmatch(sent) else f"{random.getrandbits(128):032x}"
