"""Errors on ways on which Triton passes on what they say, and not their code: from one model of a server to another,
in a stream over gRPC, and through `generate`.

A caller that sends the parameter `tidal.options.CODED_ERRORS` gets Tidal's errors as `[CODE] message`. Triton itself
puts `Model <name> - Error when running inference: ` before what it says when it does not hand a request to the model,
and nothing before what the model answers.
"""

from __future__ import annotations

import re

from tidal.errors import Cancelled, Internal, InvalidArgument, NotFound, TidalError, Unavailable, Unsupported
from tidal.service import ModelUnavailable

_CODED = re.compile(r"\[([A-Z_]+)\] (.*)", re.DOTALL)
_ERRORS = {each.code: each for each in (InvalidArgument, NotFound, Unavailable, Cancelled, Unsupported, Internal)}
# The model's process is dead; of a request that it ran, or of any before.
_DIED = re.compile(r"Stub process( '[^']+')? is not healthy\.")
# The model is not loaded, is being loaded or unloaded, or lacks the version.
_NOT_READY = re.compile(
    r"Failed for execute the inference request\. Model '[^']+' is not ready\."
    r"|Request for unknown model: .*"
    r"|.*scheduler for model has stopped accepting new inference requests",
    re.DOTALL,
)
# Any model, once the server ends.
_ENDING = "Server not ready"


def with_code(error: TidalError) -> str:
    """What an error says, its code in front; `meaning` reads it."""
    return f"[{error.code}] {error}"


def meaning(model: str, message: str) -> TidalError:
    """The error that a message of the server or of its model `model` stands for.

    What the model words itself is never taken for the server's words, unless it is the whole sentence.
    """
    own = message.removeprefix(f"Model {model} - Error when running inference: ")
    if own != message:
        if _NOT_READY.fullmatch(own):
            return ModelUnavailable(f"model '{model}' is not ready", died=False)
        if own == _ENDING:
            return Unavailable("the server ends, and its models take no more queries; send the request again")
        return Internal(f"model '{model}' does not take the request: {own}")
    if _DIED.fullmatch(message):
        return ModelUnavailable(f"the process of model '{model}' has died", died=True)
    found = _CODED.fullmatch(message)
    if found and found[1] in _ERRORS:
        return _ERRORS[found[1]](found[2])
    return Internal(f"model '{model}' failed: {message}")
