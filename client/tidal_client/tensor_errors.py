"""Errors of requests with inputs or outputs that their model does not have."""

from __future__ import annotations

import re
from collections.abc import Collection

from tidal_client.codec import InferRequest
from tidal_client.errors import InvalidArgument, RequestError
from tidal_client.results import ModelMetadata

# Triton's messages for unknown inputs and outputs; `generate_stream` passes unknown inputs as options.
_UNKNOWN = re.compile(
    r"unexpected inference (in|out)put|expected \d+ inputs but got \d+ inputs|request has 0 inputs"
    r"|unknown request option '(stream|text_input|input_ids)'"
)
# Outputs by what they are for, with the method and the command for them.
_USES = {
    "entities": ("it marks entities", "Client.entities"),
    "answer": ("it answers questions", "Client.answer"),
    "predictions": ("it predicts masked tokens", "Client.predict_masks"),
    "embedding": ("it embeds texts", "Client.embed"),
    "indices": ("it embeds texts sparsely", "Client.sparse_embed"),
    "score": ("it scores texts or pairs", "Client.rerank or Client.score"),
}


def may_be_unknown_tensor(error: RequestError) -> bool:
    """Whether a request may have failed because its model has other inputs or outputs."""
    return isinstance(error, InvalidArgument) and _UNKNOWN.search(str(error)) is not None


def unknown_tensor_error(error: RequestError, request: InferRequest, metadata: ModelMetadata) -> RequestError:
    """Return an error that names the model's inputs or outputs if the request has an unknown one, else the given error.

    Args:
        error: Error that the server sent.
        request: Request that failed.
        metadata: Metadata of the request's model.
    """
    inputs, outputs = ([tensor.name for tensor in tensors] for tensors in (metadata.inputs, metadata.outputs))
    for kind, requested, known in (("input", request.inputs, inputs), ("output", request.outputs or (), outputs)):
        unknown = [f"'{name}'" for name in requested if name not in known]
        if unknown:
            return InvalidArgument(
                f"model '{request.model}' has no {kind} {' and '.join(unknown)}; "
                f"its {kind}s are {', '.join(known)}{_use(inputs, outputs)}"
            )
    return error


def _use(inputs: Collection[str], outputs: Collection[str]) -> str:
    """Return which method and command fit these tensors; empty for models that are not Tidal's."""
    if "stream" in inputs:
        return ": it generates text, use Client.generate or `tidal generate`"
    if "image" in inputs:
        return ": it classifies images, use Client.classify_image or `tidal infer --image`"
    if "text_input" not in inputs:
        return ""
    if "label" in outputs:  # with others, a model has tasks of several kinds
        return ": it classifies texts, use Client.classify or `tidal infer --text`"
    for name, (purpose, method) in _USES.items():
        if name in outputs:
            return f": {purpose}, use {method} or `tidal infer`"
    return ""
