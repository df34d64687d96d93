"""Requests for generated text, and their responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeGuard

import numpy as np

from tidal_client.codec import InferRequest
from tidal_client.errors import InvalidArgument
from tidal_client.options import Parameter, request_parameters
from tidal_client.results import Array, Generated

#: A prompt as text or token ids, or several texts.
Prompts = str | Sequence[int] | Sequence[str]

# Parameter that makes Tidal's models prepend the code to error messages, see `tidal_client.errors.from_coded`.
CODED_ERRORS: Final = "tidal_coded_errors"


def are_texts(prompt: Prompts) -> TypeGuard[Sequence[str]]:
    """Whether a prompt is a list of texts."""
    if isinstance(prompt, str) or not isinstance(prompt, Sequence):
        return False
    return len(prompt) > 0 and all(isinstance(each, str) for each in prompt)


def generation_request(
    model: str, prompt: Prompts, *, stream: bool, request_id: str, options: Mapping[str, object]
) -> InferRequest:
    """Return the request for a generation.

    Args:
        model: Name of the model.
        prompt: Text, token ids, or several texts.
        stream: Whether the server sends the text in parts.
        request_id: Id of the request in the server's logs.
        options: Request options, see `tidal_client.options.Options`.

    Raises:
        InvalidArgument: The prompt or an option has a wrong type.
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
    """Return the generated text of each prompt in a response: all prompts, or in a stream one."""
    texts, finishes = outputs.get("text_output"), outputs.get("finish_reason")
    tokens = outputs["token_ids"].tolist() if "token_ids" in outputs else []
    indices = outputs["index"].tolist() if "index" in outputs else [0]
    generated = []
    for row, index in enumerate(indices):
        count = _count(outputs, "generated_tokens", row)
        # Tokens of several prompts are concatenated.
        own = tokens if len(indices) == 1 or count is None else tokens[:count]
        tokens = tokens[len(own) :]
        generated.append(
            Generated(
                text="" if texts is None else bytes(texts[row]).decode(),
                tokens=tuple(own),
                finish_reason=None if finishes is None else bytes(finishes[row]).decode(),
                prompt_tokens=_count(outputs, "prompt_tokens", row),
                generated_tokens=count,
                index=int(index),
            )
        )
    return generated


def _count(outputs: Mapping[str, Array], name: str, row: int) -> int | None:
    return int(outputs[name][row]) if name in outputs else None
