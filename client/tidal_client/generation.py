"""A generation's request and its parts, between the caller's values and arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from tidal_client.codec import InferRequest
from tidal_client.errors import InvalidArgument
from tidal_client.options import Parameter, request_parameters
from tidal_client.results import Array, Generated

# Asks a model of Tidal to put their code in front of its errors, see `tidal_client.errors.from_coded`.
_CODED_ERRORS: Final = "tidal_coded_errors"


def generation_request(
    model: str, prompt: str | Sequence[int], *, stream: bool, request_id: str, options: Mapping[str, object]
) -> InferRequest:
    """The request for a generation.

    Args:
        model: the model's name.
        prompt: a text, or token ids.
        stream: whether parts are wanted.
        request_id: a name for it in the server's logs.
        options: as `request_parameters` takes them.

    Raises:
        InvalidArgument: a prompt or an option of another type.
    """
    inputs: dict[str, Array] = {"stream": np.array([stream])}
    if isinstance(prompt, str):
        try:
            inputs["text_input"] = np.array([prompt.encode()], object)
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"prompt: not valid Unicode: {error.reason}") from None
    else:
        try:
            inputs["input_ids"] = np.array(prompt, np.int64).reshape(-1)
        except (TypeError, ValueError, OverflowError):
            raise InvalidArgument(f"prompt: expected a text or token ids, got {type(prompt).__name__}") from None
    parameters: dict[str, Parameter] = {**request_parameters(options), _CODED_ERRORS: True}
    return InferRequest(model, inputs, None, parameters, request_id)


def read_generated(outputs: Mapping[str, Array]) -> Generated:
    """What a response says."""
    finish, text = outputs.get("finish_reason"), outputs.get("text_output")
    return Generated(
        text="" if text is None else bytes(text.item()).decode(),
        tokens=tuple(outputs["token_ids"].tolist()) if "token_ids" in outputs else (),
        finish_reason=None if finish is None else bytes(finish.item()).decode(),
        prompt_tokens=_count(outputs, "prompt_tokens"),
        generated_tokens=_count(outputs, "generated_tokens"),
    )


def _count(outputs: Mapping[str, Array], name: str) -> int | None:
    return int(outputs[name].item()) if name in outputs else None
