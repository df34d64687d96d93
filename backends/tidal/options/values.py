"""Types of options. A request parameter is an int, a float, a boolean or a text, and inside Triton an int or a text.

So every type also accepts its values as text, and lists and mappings are JSON texts.
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

_MAX_NUMBER_CHARS = 64
# Stop texts and choices.
_MAX_STOPS, _MAX_STOP_CHARS = 8, 256
_MAX_CHOICES, _MAX_CHOICE_CHARS = 1024, 1024
_MAX_STOP_TOKENS, _MAX_BIASES = 64, 1024
_MAX_BIAS = 100
#: Largest number of characters of a grammar, and of a JSON object.
MAX_TEXT_CHARS = 1 << 16


def _number(value: object) -> object:
    """Accept int, float and text: a request made inside Triton cannot carry a float."""
    if isinstance(value, bool):
        raise ValueError("expected a number, got a boolean")
    if isinstance(value, str):
        text = value
        if len(text) > _MAX_NUMBER_CHARS:
            raise ValueError(f"expected a number of at most {_MAX_NUMBER_CHARS} characters, got {len(text)}")
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"expected a number, got the text '{text[:40]}'") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("expected a finite number")
    return value


def _integer(value: object) -> object:
    number = _number(value)
    if isinstance(number, float):
        if not number.is_integer():
            raise ValueError(f"expected a whole number, got {number}")
        return int(number)
    return number


def _flag(value: object) -> object:
    """Accept a boolean also as text: a request made inside Triton cannot carry a boolean."""
    parsed = {"true": True, "false": False}.get(str(value).lower()) if isinstance(value, bool | str) else None
    if parsed is None:
        raise ValueError(f"expected true or false, got {str(value)[:40]!r}")
    return parsed


def _early_stopping(value: object) -> object:
    known = {"true": True, "false": False, "never": "never"}
    parsed = known.get(str(value).lower()) if isinstance(value, bool | str) else None
    if parsed is None:
        raise ValueError(f"expected true, false or 'never', got {str(value)[:40]!r}")
    return parsed


def _json(value: object, what: str) -> Any:
    """Parse a JSON text; `what` is what it should be."""
    if not isinstance(value, str):
        raise ValueError(f"expected {what} as JSON text, got {type(value).__name__}")
    if len(value) > MAX_TEXT_CHARS:
        raise ValueError(f"expected {what} of at most {MAX_TEXT_CHARS} characters as JSON text, got {len(value)}")
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError(f"expected {what} as JSON text, got something else: '{value[:40]}'") from None


def _texts(values: object, most: int, longest: int) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(each, str) and each for each in values):
        raise ValueError("expected texts of at least 1 character")
    if not 1 <= len(values) <= most or max(map(len, values)) > longest:
        raise ValueError(f"expected 1 to {most} texts of at most {longest} characters")
    return tuple(values)


def _stops(value: object) -> object:
    """Accept one text, or several as a JSON list: a request parameter cannot be a list."""
    if not isinstance(value, str):
        raise ValueError(f"expected a text, got {type(value).__name__}")
    stops: object = [value]
    if value.startswith("["):
        try:
            stops = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError("expected a JSON list of texts, as it begins with '[', got something else") from None
    return _texts(stops, _MAX_STOPS, _MAX_STOP_CHARS)


def _choices(value: object) -> object:
    choices = _texts(_json(value, "a list of texts"), _MAX_CHOICES, _MAX_CHOICE_CHARS)
    if sum(map(len, choices)) > MAX_TEXT_CHARS:
        raise ValueError(f"expected texts of at most {MAX_TEXT_CHARS} characters together")
    return choices


def _token_ids(value: object) -> object:
    """Accept one id, or several as a JSON list."""
    ids: Any = _json(value, "a list of token ids") if isinstance(value, str) and value.startswith("[") else [value]
    if not isinstance(ids, list) or not 1 <= len(ids) <= _MAX_STOP_TOKENS:
        raise ValueError(f"expected 1 to {_MAX_STOP_TOKENS} token ids")
    return tuple(_integer(each) for each in ids)


def _biases(value: object) -> object:
    """Accept a JSON object of biases by token id."""
    biases = _json(value, "an object of biases by token id")
    if not isinstance(biases, dict) or not 1 <= len(biases) <= _MAX_BIASES:
        raise ValueError(f"expected a JSON object of 1 to {_MAX_BIASES} biases by token id")
    pairs: list[tuple[object, float]] = []
    for token, bias in biases.items():
        if not token.isdecimal():
            raise ValueError(f"expected token ids as keys, got '{token[:40]}'")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -_MAX_BIAS <= bias <= _MAX_BIAS:
            raise ValueError(f"expected biases from -{_MAX_BIAS} to {_MAX_BIAS}, got {str(bias)[:40]} for {token[:40]}")
        pairs.append((_integer(token), float(bias)))
    if len({token for token, _ in pairs}) < len(pairs):
        raise ValueError("expected each token id once")
    return tuple(pairs)


def _object(value: object) -> object:
    parsed = _json(value, "an object")
    if not isinstance(parsed, dict):
        raise ValueError(f"expected a JSON object, got {str(value)[:40]!r}")
    return parsed


Number = Annotated[float, BeforeValidator(_number)]
Integer = Annotated[int, BeforeValidator(_integer)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_stops)]
Choices = Annotated[tuple[str, ...], BeforeValidator(_choices)]
TokenIds = Annotated[tuple[int, ...], BeforeValidator(_token_ids)]
Biases = Annotated[tuple[tuple[int, float], ...], BeforeValidator(_biases)]
JsonObject = Annotated[dict[str, Any], BeforeValidator(_object)]
EarlyStopping = Annotated[Literal[True, False, "never"], BeforeValidator(_early_stopping)]
