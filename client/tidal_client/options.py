"""Request options as keyword arguments. They are sent as Triton request parameters; the server validates them."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from tidal_client.errors import InvalidArgument

Parameter = str | int | float


class Options(TypedDict, total=False):
    """Options of Tidal's models; absent or None: the model's default."""

    #: Name of the task.
    task: str | None
    #: Deadline in milliseconds after the request's arrival; a missed deadline ends in `Unavailable`.
    latency_ms: float | None
    #: Utility of a response that meets the deadline.
    utility: float | None
    #: Cascades: minimum score to reach, in the metric that the cascade was built with.
    accuracy: float | None
    #: Cascades: highest level to use, from 1.
    max_level: int | None
    #: Maximum number of tokens to generate.
    max_tokens: int | None
    #: Sampling temperature; 0: greedy decoding.
    temperature: float | None
    #: Sample from the k most likely tokens.
    top_k: int | None
    #: Sample from the most likely tokens whose probabilities sum to this, above 0 and up to 1.
    top_p: float | None
    #: Penalty on tokens that already occur in the text: above 1 less likely, below 1 more likely.
    repetition_penalty: float | None
    #: Seed of the sampling.
    seed: int | None
    #: Text or texts that end the generation; not part of the result.
    stop: str | Sequence[str] | None
    #: Number of beams; above 1: beam search.
    num_beams: int | None
    #: Beam search: above 0 favors long texts, below 0 short ones.
    length_penalty: float | None
    #: Beam search: stop condition, see docs/flover.md.
    early_stopping: bool | Literal["never"] | None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _stops(value: object) -> str:
    """Return one stop text as is, unless it begins like a JSON list; several as a JSON list."""
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


# tritonclient accepts exactly these Python types, so numpy's numbers are converted.
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
    """Return the Triton request parameters of options.

    Args:
        options: Values by option name; None: not sent.

    Raises:
        TypeError: A name is not an option.
        InvalidArgument: A value has a wrong type.
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
