"""What to do about a request of another kind than its model takes."""

from __future__ import annotations

import re

from tidal_client.codec import InferRequest
from tidal_client.errors import InvalidArgument, RequestError
from tidal_client.results import ModelMetadata

# Triton's sentences for inputs that a model does not have; over `generate_stream` unknown inputs become options.
_UNKNOWN_INPUT = re.compile(
    r"unexpected inference input|expected \d+ inputs but got \d+ inputs|request has 0 inputs"
    r"|unknown request option '(stream|text_input|input_ids)'"
)


def may_be_unknown_input(error: RequestError) -> bool:
    """Whether a request may have failed because its model takes other inputs."""
    return isinstance(error, InvalidArgument) and _UNKNOWN_INPUT.search(str(error)) is not None


def unknown_input_error(error: RequestError, request: InferRequest, metadata: ModelMetadata) -> RequestError:
    """The error of a request with an input that its model does not have, with what the model takes; else `error`."""
    inputs = [tensor.name for tensor in metadata.inputs]
    unknown = [f"'{name}'" for name in request.inputs if name not in inputs]
    if not unknown:
        return error
    return InvalidArgument(
        f"model '{request.model}' has no input {' and '.join(unknown)}; it takes {', '.join(inputs)}{_use(inputs)}"
    )


def _use(inputs: list[str]) -> str:
    """How a model with these inputs is asked; nothing where they are not those of a model of Tidal's."""
    if "stream" in inputs:
        return ": it generates text, use Client.generate or `tidal generate`"
    if "image" in inputs:
        return ": it classifies images, use Client.classify_image or `tidal infer --image`"
    if "text_input" in inputs:
        return ": it classifies texts, use Client.classify or `tidal infer --text`"
    return ""
