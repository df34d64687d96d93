"""Options of a request as keyword arguments; they travel as Triton request parameters and the server checks them."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from tidal_client.errors import InvalidArgument

Parameter = str | int | float


class Options(TypedDict, total=False):
    """Options common to all of Tidal's models. Absent and None both mean the model's default."""

    #: Task that the query belongs to.
    task: str | None
    #: Deadline in milliseconds after the request's arrival; missing it is `Unavailable`.
    latency_ms: float | None
    #: Worth of an answer in time.
    utility: float | None
    #: Least score, on the model's own measure, that a cascade is to answer with.
    accuracy: float | None
    #: Last level of a cascade that may be asked, from 1.
    max_level: int | None
    #: Tokens to generate at most.
    max_tokens: int | None
    #: Sampling temperature, 0 is greedy.
    temperature: float | None
    #: Sample among the k likeliest tokens.
    top_k: int | None
    #: Sample among the likeliest tokens that have this probability together, above 0 to 1.
    top_p: float | None
    #: Above 1 makes tokens that the text has less likely, below 1 likelier.
    repetition_penalty: float | None
    #: Seed of the sampling.
    seed: int | None
    #: Text that ends the generation and is no part of it, or several.
    stop: str | Sequence[str] | None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _stops(value: object) -> str:
    """One text as it is where it does not look like a list, others as a JSON list."""
    texts = [value] if isinstance(value, str) else list(map(_text, value)) if isinstance(value, Sequence) else None
    if texts is None:
        raise TypeError
    one = texts[0] if len(texts) == 1 else None
    return json.dumps(texts) if one is None or one.startswith("[") else one


# tritonclient takes exactly these Python types, so numpy's numbers are made plain.
_KINDS: dict[str, tuple[Callable[[Any], Parameter], str]] = {
    "task": (_text, "text"),
    "latency_ms": (float, "a number"),
    "utility": (float, "a number"),
    "accuracy": (float, "a number"),
    "max_level": (operator.index, "a whole number"),
    "max_tokens": (operator.index, "a whole number"),
    "temperature": (float, "a number"),
    "top_k": (operator.index, "a whole number"),
    "top_p": (float, "a number"),
    "repetition_penalty": (float, "a number"),
    "seed": (operator.index, "a whole number"),
    "stop": (_stops, "a text or a list of texts"),
}


def request_parameters(options: Mapping[str, object]) -> dict[str, Parameter]:
    """Triton request parameters for the options that were given.

    Raises:
        TypeError: a keyword that is no option.
        InvalidArgument: a value of the wrong type.
    """
    parameters: dict[str, Parameter] = {}
    for name, value in options.items():
        if name not in _KINDS:
            raise TypeError(f"unexpected keyword argument '{name}'; options are {', '.join(_KINDS)}")
        if value is None:
            continue
        convert, kind = _KINDS[name]
        try:
            if isinstance(value, bool):
                raise TypeError
            parameters[name] = convert(value)
        except (TypeError, ValueError):
            raise InvalidArgument(f"option '{name}': expected {kind}, got {value!r}") from None
    return parameters
