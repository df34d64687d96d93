"""Classify the error of a call: whether the process that ran it died."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tidal_client.errors import ConnectionFailed, RequestError, Unavailable


@dataclass(frozen=True, slots=True)
class Failure:
    """A process that died or refuses requests.

    Attributes:
        whole_server: Whether it is tritonserver; else it is a process of a model.
        died: Whether it died; else it refuses requests, because it stops or is not loaded.
        begun: Whether it may have begun the request.
        model: Model whose process it is, where that is not the one that was called; empty otherwise.
    """

    whole_server: bool = False
    died: bool = True
    begun: bool = True
    model: str = ""


# Triton's prefix of a message. Messages are compared as a whole: those of models may quote what a client sent.
_WHERE: Final = r"(?:\[request id: .*?\] )?(?:in ensemble '[^']*', )*"
_STUB_DIED: Final = re.compile(
    _WHERE + r"(?:Failed to process the request\(s\) for model instance '[^']*', message: )?"
    r"Stub process(?: '(?P<instance>[^']*)')? is not healthy\.?",
    re.DOTALL,
)
_SERVER_STOPS: Final = re.compile(_WHERE + r"(Server not ready|the server is shutting down; send the request again)")
_NOT_LOADED: Final = re.compile(
    _WHERE + r"(Request for unknown model: '[^']*' "
    r"(is not found|has no available versions|version -?\d+ is not at ready state)"
    r"|Server is stopping, scheduler for model has stopped accepting new inference requests)"
)
# Tidal's messages, of a model that stops or that calls another one.
_STOPS: Final = re.compile(
    _WHERE + r"(the model (is being unloaded|was unloaded before it answered); send the request again"
    r"|model '(?P<model>[^']*)' is not ready)"
)
_OTHER_DIED: Final = re.compile(_WHERE + r"the process of model '(?P<model>[^']*)' has died")
_INSTANCE: Final = re.compile(r"(_\d+){1,2}$")
_NOT_SENT: Final = re.compile(r"failed to connect|errors resolving|DNS resolution failed")


def failure_of(error: RequestError, called: str) -> Failure | None:
    """Return what died or refuses; None if the error is an answer of a process that runs.

    Args:
        error: Error of the call.
        called: Model that was called.
    """
    message = str(error)
    if isinstance(error, ConnectionFailed):
        return Failure(whole_server=True, begun=_NOT_SENT.search(message) is None)
    if _SERVER_STOPS.fullmatch(message):
        return Failure(whole_server=True, died=False, begun=False)
    if _NOT_LOADED.fullmatch(message):
        return Failure(died=False, begun=False)
    if found := _STUB_DIED.fullmatch(message):
        instance = found["instance"] or called
        return Failure(model="" if instance.startswith(called) else _INSTANCE.sub("", instance))
    if not isinstance(error, Unavailable):
        return None
    if found := _OTHER_DIED.fullmatch(message):
        return Failure(model=found["model"])
    if found := _STOPS.fullmatch(message):
        return Failure(died=False, model=found["model"] or "")
    return None
