"""Errors of requests whose inputs their model does not have."""

from __future__ import annotations

import re

from tidal_client.codec import InferRequest
from tidal_client.errors import InvalidArgument, RequestError
from tidal_client.results import ModelMetadata

# Triton's messages for unknown inputs; `generate_stream` passes unknown inputs as options.
_UNKNOWN_INPUT = re.compile(
    r"unexpected inference input|expected \d+ inputs but got \d+ inputs|request has 0 inputs"
    r"|unknown request option '(stream|text_input|input_ids)'"
)


def may_be_unknown_input(error: RequestError) -> bool:
    """Whether a request may have failed because its model has other inputs."""
    return isinstance(error, InvalidArgument) and _UNKNOWN_INPUT.search(str(error)) is not None


def unknown_input_error(error: RequestError, request: InferRequest, metadata: ModelMetadata) -> RequestError:
    """Return an error that names the model's inputs if the request has an unknown input, else the given error.

    Args:
        error: Error that the server sent.
        request: Request that failed.
        metadata: Metadata of the request's model.
    """
    inputs = [tensor.name for tensor in metadata.inputs]
    unknown = [f"'{name}'" for name in request.inputs if name not in inputs]
    if not unknown:
        return error
    return InvalidArgument(
        f"model '{request.model}' has no input {' and '.join(unknown)}; "
        f"its inputs are {', '.join(inputs)}{_use(inputs)}"
    )


def _use(inputs: list[str]) -> str:
    """Return which method and command fit these inputs; empty for models that are not Tidal's."""
    if "stream" in inputs:
        return ": it generates text, use Client.generate or `tidal generate`"
    if "image" in inputs:
        return ": it classifies images, use Client.classify_image or `tidal infer --image`"
    if "text_input" in inputs:
        return ": it classifies texts, use Client.classify or `tidal infer --text`"
    return ""
