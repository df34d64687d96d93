"""The inputs `messages` and `tools` of a request: JSON texts, checked before a template sees them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tidal.errors import InvalidArgument
from tidal.requests import Array

_MAX_MESSAGES, _MAX_TOOLS = 4096, 512


def read_messages(values: Array, max_bytes: int) -> list[dict[str, Any]]:
    """Return the messages of a request.

    Args:
        values: The input, [1] bytes: a JSON list of objects with `role` and, mostly, `content`.
        max_bytes: Largest size of the JSON text.

    Raises:
        InvalidArgument: It is not such a list; says what is wrong.
    """
    messages = _read_list("messages", values, max_bytes, _MAX_MESSAGES)
    for number, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not role:
            raise InvalidArgument(
                f"messages[{number}] has the role {_short(role)}; accepted is a text such as 'user', 'assistant', "
                "'system' or 'tool'"
            )
        if isinstance(content, list):
            for part in content:
                if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                    raise InvalidArgument(
                        f"messages[{number}] has the content part {_short(part)}; accepted are texts, "
                        '{"type": "text", "text": "…"}'
                    )
        elif content is not None and not isinstance(content, str):
            raise InvalidArgument(
                f"messages[{number}] has the content {_short(content)}; accepted are a text, a list of text parts, and "
                "null"
            )
    return messages


def read_tools(values: Array | None, max_bytes: int) -> list[dict[str, Any]] | None:
    """Return the tools of a request; None if it has none.

    Args:
        values: The input, [1] bytes: a JSON list of objects; None if it was not sent.
        max_bytes: Largest size of the JSON text.

    Raises:
        InvalidArgument: It is not such a list.
    """
    return None if values is None else _read_list("tools", values, max_bytes, _MAX_TOOLS)


def _read_list(name: str, values: Array, max_bytes: int, most: int) -> list[dict[str, Any]]:
    if values.shape != (1,):
        raise InvalidArgument(f"{name} has shape {list(values.shape)}; accepted is [1], a JSON list of objects")
    text = bytes(values[0])
    if len(text) > max_bytes:
        raise InvalidArgument(f"{name} has {len(text)} bytes; accepted are at most {max_bytes}")
    try:
        read: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{name} is not valid JSON ({error}); accepted is a JSON list of objects") from None
    if not isinstance(read, list) or not 1 <= len(read) <= most or not all(isinstance(each, Mapping) for each in read):
        raise InvalidArgument(f"{name} is {_short(read)}; accepted is a JSON list of 1 to {most} objects")
    return read


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:80]}…"
