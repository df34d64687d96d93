"""Requests for generated text, and their responses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeGuard

import numpy as np

from tidal_client.codec import InferRequest, infer_request
from tidal_client.errors import InvalidArgument
from tidal_client.results import Array, Generated

#: A prompt as text or token ids, or several texts.
Prompts = str | Sequence[int] | Sequence[str]
#: Messages of a chat, or tools: mappings of JSON values.
Messages = Sequence[Mapping[str, Any]]

#: What to do where one text is asked for and `n` are generated.
SEND_A_LIST: Final = "send the prompt in a list, which returns a list"
# Parameter that makes Tidal's models prepend the code to error messages, see `tidal_client.errors.from_coded`.
CODED_ERRORS: Final = "tidal_coded_errors"


def are_texts(prompt: Prompts) -> TypeGuard[Sequence[str]]:
    """Whether a prompt is a list of texts."""
    if isinstance(prompt, str) or not isinstance(prompt, Sequence):
        return False
    return len(prompt) > 0 and all(isinstance(each, str) for each in prompt)


def generation_request(model: str, prompt: Prompts, *, stream: bool, options: Mapping[str, object]) -> InferRequest:
    """Return the request for a generation.

    Args:
        model: Name of the model.
        prompt: Text, token ids, or several texts.
        stream: Whether the server sends the text in parts.
        options: Keyword arguments of the call, see `tidal_client.options.CallOptions`.

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
    return infer_request(model, inputs, None, options, {CODED_ERRORS: True})


def chat_request(
    model: str,
    messages: Messages,
    *,
    tools: Messages | None,
    stream: bool,
    options: Mapping[str, object],
) -> InferRequest:
    """Return the request for the next message of a chat.

    Args:
        model: Name of the model.
        messages: Messages, the oldest first.
        tools: JSON schemas of functions that the assistant may call; None without any.
        stream: Whether the server sends the text in parts.
        options: Keyword arguments of the call, see `tidal_client.options.CallOptions`.

    Raises:
        InvalidArgument: Messages, tools or an option have a wrong type.
    """
    inputs: dict[str, Array] = {"stream": np.array([stream]), "messages": _json_input("messages", messages)}
    if tools is not None:
        inputs["tools"] = _json_input("tools", tools)
    return infer_request(model, inputs, None, options, {CODED_ERRORS: True})


def check_single(options: Mapping[str, object], instead: str) -> None:
    """Refuse options that give several texts where a call returns one.

    Args:
        options: Options of the request.
        instead: Alternative, for the error.

    Raises:
        InvalidArgument: The option `n` is above 1.
    """
    if (texts := options.get("n")) not in (None, 1):
        raise InvalidArgument(f"option 'n': {texts} texts where one is returned; {instead}")


def _json_input(name: str, values: Messages) -> Array:
    try:
        if isinstance(values, str | bytes) or not all(isinstance(each, Mapping) for each in values):
            raise TypeError
        return np.array([json.dumps(list(values)).encode()], object)
    except (TypeError, ValueError, RecursionError):
        raise InvalidArgument(f"{name}: expected a list of mappings of JSON values, got {values!r:.80}") from None


def read_generated(outputs: Mapping[str, Array]) -> list[Generated]:
    """Return the texts of a response: all of the request, or in a stream one."""
    texts, finishes = outputs.get("text_output"), outputs.get("finish_reason")
    tokens = outputs["token_ids"].tolist() if "token_ids" in outputs else []
    indices = outputs["index"].tolist() if "index" in outputs else [0]
    generated, start = [], 0
    for row, index in enumerate(indices):
        count = _count(outputs, "generated_tokens", row)
        # Tokens of several texts are concatenated.
        end = len(tokens) if len(indices) == 1 or count is None else start + count
        generated.append(
            Generated(
                text="" if texts is None else bytes(texts[row]).decode(),
                tokens=tuple(tokens[start:end]),
                finish_reason=None if finishes is None else bytes(finishes[row]).decode(),
                prompt_tokens=_count(outputs, "prompt_tokens", row),
                generated_tokens=count,
                index=int(index),
                cached_tokens=_count(outputs, "cached_tokens", row),
                logprobs=tuple(outputs["logprobs"][start:end].tolist()) if "logprobs" in outputs else None,
                top_logprobs=_top(outputs, "top_logprobs", len(tokens), slice(start, end)),
                token_texts=tuple(_texts(outputs["token_texts"][start:end])) if "token_texts" in outputs else None,
                top_token_texts=_top(outputs, "top_token_texts", len(tokens), slice(start, end)),
            )
        )
        start = end
    return generated


def _top(outputs: Mapping[str, Array], name: str, tokens: int, rows: slice) -> tuple[Mapping[int, Any], ...] | None:
    """Values of the most likely tokens of each step by token id."""
    if not tokens or name not in outputs or "top_token_ids" not in outputs:
        return None
    # Server-sent events do not have shapes.
    ids, values = (outputs[each].reshape(tokens, -1)[rows].tolist() for each in ("top_token_ids", name))
    read = _texts if name == "top_token_texts" else list
    return tuple(dict(zip(each, read(row), strict=True)) for each, row in zip(ids, values, strict=True))


def _texts(values: Iterable[bytes]) -> list[str]:
    return [bytes(each).decode() for each in values]


def _count(outputs: Mapping[str, Array], name: str, row: int) -> int | None:
    return int(outputs[name][row]) if name in outputs else None
