"""Error codes inside messages, where Triton transports only the message: between models, in gRPC streams, `generate`.

A caller that sends the parameter `tidal.options.CODED_ERRORS` gets Tidal's errors as `[CODE] message`. If Triton does
not pass a request to the model, its own message begins with `Model <name> - Error when running inference: `; a message
of the model has no such prefix.
"""

from __future__ import annotations

import re

from tidal.errors import Cancelled, Internal, InvalidArgument, NotFound, TidalError, Unavailable, Unsupported
from tidal.service import ModelUnavailable

_CODED = re.compile(r"\[([A-Z_]+)\] (.*)", re.DOTALL)
_ERRORS = {each.code: each for each in (InvalidArgument, NotFound, Unavailable, Cancelled, Unsupported, Internal)}
# The model's process is dead, because of this request or an earlier one.
_DIED = re.compile(r"Stub process( '[^']+')? is not healthy\.")
# The model is not loaded, is being loaded or unloaded, or lacks the version.
_NOT_READY = re.compile(
    r"Failed for execute the inference request\. Model '[^']+' is not ready\."
    r"|Request for unknown model: .*"
    r"|.*scheduler for model has stopped accepting new inference requests",
    re.DOTALL,
)
# The server is shutting down; the same for all models.
_SERVER_STOPS = "Server not ready"


def with_code(error: TidalError) -> str:
    """Return an error's message with its code in front, as `parse_error` reads it."""
    return f"[{error.code}] {error}"


def parse_error(model: str, message: str) -> TidalError:
    """Return the error for a message of the server or of a model.

    A model's own message is taken for a message of the server only if it equals one completely.

    Args:
        model: Name of the model that was called.
        message: Text of the error as Triton passed it.
    """
    own = message.removeprefix(f"Model {model} - Error when running inference: ")
    if own != message:
        if _NOT_READY.fullmatch(own):
            return ModelUnavailable(f"model '{model}' is not ready", died=False)
        if own == _SERVER_STOPS:
            return Unavailable("the server is shutting down; send the request again")
        return Internal(f"model '{model}' did not accept the request: {own}")
    if _DIED.fullmatch(message):
        return ModelUnavailable(f"the process of model '{model}' has died", died=True)
    found = _CODED.fullmatch(message)
    if found and found[1] in _ERRORS:
        return _ERRORS[found[1]](found[2])
    return Internal(f"model '{model}' failed: {message}")


def parse_remote_error(model: str, message: str) -> TidalError:
    """Return the error for a message of another server, whose own messages have no prefix; see `parse_error`.

    A server that is shutting down cannot run the request; other servers can.

    Args:
        model: Name of the model that was called with the parameter `tidal.options.CODED_ERRORS`.
        message: Text of the error.
    """
    if message == _SERVER_STOPS:
        return ModelUnavailable(f"the server of model '{model}' is shutting down", died=False)
    if _NOT_READY.fullmatch(message):
        return ModelUnavailable(f"model '{model}' is not ready", died=False)
    return parse_error(model, message)
