"""A generation's request and what comes back, between the caller's values and arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeGuard

import numpy as np

from tidal_client.codec import InferRequest
from tidal_client.errors import InvalidArgument
from tidal_client.options import Parameter, request_parameters
from tidal_client.results import Array, Generated

#: A text, token ids, or several texts.
Prompts = str | Sequence[int] | Sequence[str]

# Asks a model of Tidal to put their code in front of its errors, see `tidal_client.errors.from_coded`.
CODED_ERRORS: Final = "tidal_coded_errors"


def are_texts(prompt: Prompts) -> TypeGuard[Sequence[str]]:
    """Whether these are several prompts, or a list of one."""
    if isinstance(prompt, str) or not isinstance(prompt, Sequence):
        return False
    return len(prompt) > 0 and all(isinstance(each, str) for each in prompt)


def generation_request(
    model: str, prompt: Prompts, *, stream: bool, request_id: str, options: Mapping[str, object]
) -> InferRequest:
    """The request for a generation.

    Args:
        model: the model's name.
        prompt: a text, token ids, or several texts.
        stream: whether parts are wanted.
        request_id: a name for it in the server's logs.
        options: as `request_parameters` takes them.

    Raises:
        InvalidArgument: a prompt or an option of another type.
    """
    inputs: dict[str, Array] = {"stream": np.array([stream])}
    if isinstance(prompt, str) or are_texts(prompt):
        texts = [prompt] if isinstance(prompt, str) else prompt
        try:
            inputs["text_input"] = np.array([text.encode() for text in texts], object)
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"prompt: not valid Unicode: {error.reason}") from None
    else:
        try:
            inputs["input_ids"] = np.array(prompt, np.int64).reshape(-1)
        except (TypeError, ValueError, OverflowError):
            raise InvalidArgument(
                f"prompt: expected a text, token ids or a list of texts, got {type(prompt).__name__}"
            ) from None
    parameters: dict[str, Parameter] = {**request_parameters(options), CODED_ERRORS: True}
    return InferRequest(model, inputs, None, parameters, request_id)


def read_generated(outputs: Mapping[str, Array]) -> list[Generated]:
    """What a response says of each prompt that it is about: of all, or in a stream of one."""
    texts, finishes = outputs.get("text_output"), outputs.get("finish_reason")
    tokens = outputs["token_ids"].tolist() if "token_ids" in outputs else []
    indices = outputs["index"].tolist() if "index" in outputs else [0]
    found = []
    for place, index in enumerate(indices):
        count = _count(outputs, "generated_tokens", place)
        # Tokens of several prompts come one after the other.
        mine = tokens if len(indices) == 1 or count is None else tokens[:count]
        tokens = tokens[len(mine) :]
        found.append(
            Generated(
                text="" if texts is None else bytes(texts[place]).decode(),
                tokens=tuple(mine),
                finish_reason=None if finishes is None else bytes(finishes[place]).decode(),
                prompt_tokens=_count(outputs, "prompt_tokens", place),
                generated_tokens=count,
                index=int(index),
            )
        )
    return found


def _count(outputs: Mapping[str, Array], name: str, place: int) -> int | None:
    return int(outputs[name][place]) if name in outputs else None
