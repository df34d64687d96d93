"""Options of a request as keyword arguments; they travel as Triton request parameters and the server checks them."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

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
    #: Texts to follow at the same time in beam search.
    num_beams: int | None
    #: Above 0 makes beam search favour long texts, below 0 short ones.
    length_penalty: float | None
    #: When beam search ends: see the server's documentation.
    early_stopping: bool | Literal["never"] | None


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


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    return float(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def _early_stopping(value: object) -> Parameter:
    if not isinstance(value, bool) and value != "never":
        raise TypeError
    return value if isinstance(value, bool) else "never"


# tritonclient takes exactly these Python types, so numpy's numbers are made plain.
_KINDS: dict[str, tuple[Callable[[Any], Parameter], str]] = {
    "task": (_text, "text"),
    "latency_ms": (_number, "a number"),
    "utility": (_number, "a number"),
    "accuracy": (_number, "a number"),
    "max_level": (_whole, "a whole number"),
    "max_tokens": (_whole, "a whole number"),
    "temperature": (_number, "a number"),
    "top_k": (_whole, "a whole number"),
    "top_p": (_number, "a number"),
    "repetition_penalty": (_number, "a number"),
    "seed": (_whole, "a whole number"),
    "stop": (_stops, "a text or a list of texts"),
    "num_beams": (_whole, "a whole number"),
    "length_penalty": (_number, "a number"),
    "early_stopping": (_early_stopping, "True, False or 'never'"),
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
            parameters[name] = convert(value)
        except (TypeError, ValueError):
            raise InvalidArgument(f"option '{name}': expected {kind}, got {value!r}") from None
    return parameters
