"""Options that a request carries as Triton request parameters, parsed and checked in one place.

Every backend checks all of them and uses its own: an ensemble hands the same parameters to every model in it,
so an option that one system has no use for is no error, while an unknown name always is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from tidal.errors import InvalidArgument, did_you_mean

# Sent by a model that asks another one of its server, and by clients in streams: errors are to say their code, see
# `tidal.triton.coded_errors`.
CODED_ERRORS = "tidal_coded_errors"
# Sent by a model that asks another one of its server, for the request log.
FROM_MODEL = "tidal_from_model"
# Parameters that Triton or its HTTP frontends put beside a client's own.
_TRITON_OWN = frozenset({"id", "priority", "timeout", "sequence_id", "sequence_start", "sequence_end", "headers"})
_NO_OPTIONS = _TRITON_OWN | {CODED_ERRORS, FROM_MODEL}
_TRITON_PREFIX = "triton_"
# Of all parameters of a request together, as JSON: several times what the longest accepted options take, `stop` with 8
# texts of 256 characters, each of which JSON may write as 12.
MAX_OPTIONS_CHARS = 128 << 10
_MAX_NUMBER_CHARS = 64


def _number(value: object) -> object:
    """Numbers arrive as int, float or text (a request made inside Triton cannot carry a float)."""
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


_MOST_STOPS, _LONGEST_STOP = 8, 256


def _stops(value: object) -> object:
    """One text, or several as a JSON list: parameters of a request are no lists."""
    if not isinstance(value, str):
        raise ValueError(f"expected a text, got {type(value).__name__}")
    stops: object = [value]
    if value.startswith("["):
        try:
            stops = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError("expected a JSON list of texts, as it begins with '[', got something else") from None
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise ValueError("expected texts of at least 1 character")
    if not 1 <= len(stops) <= _MOST_STOPS or max(map(len, stops)) > _LONGEST_STOP:
        raise ValueError(f"expected 1 to {_MOST_STOPS} texts of at most {_LONGEST_STOP} characters")
    return tuple(stops)


def _early_stopping(value: object) -> object:
    """Also as text: a request made inside Triton cannot carry a boolean."""
    known = {"true": True, "false": False, "never": "never"}
    found = known.get(str(value).lower()) if isinstance(value, bool | str) else None
    if found is None:
        raise ValueError(f"expected true, false or 'never', got {str(value)[:40]!r}")
    return found


Number = Annotated[float, BeforeValidator(_number)]
Integer = Annotated[int, BeforeValidator(_integer)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_stops)]
EarlyStopping = Annotated[Literal[True, False, "never"], BeforeValidator(_early_stopping)]


class RequestOptions(BaseModel):
    """Options of one request. A field that was not sent is None, so a backend can tell its default from a wish."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: str | None = Field(None, min_length=1, max_length=256, description="task that the query belongs to")
    latency_ms: Number | None = Field(None, gt=0, le=3_600_000, description="deadline in milliseconds after arrival")
    utility: Number | None = Field(None, ge=0, le=1e6, description="worth of an answer in time")
    accuracy: Number | None = Field(
        None, ge=0, le=1, description="least score, on the model's own measure, to answer with"
    )
    max_level: Integer | None = Field(
        None, ge=1, le=1000, description="last level of a cascade that may be asked, from 1"
    )
    max_tokens: Integer | None = Field(None, ge=1, le=1_000_000, description="tokens to generate at most")
    temperature: Number | None = Field(None, ge=0, le=100, description="sampling temperature, 0 is greedy")
    top_k: Integer | None = Field(None, ge=0, le=1_000_000, description="sample among the k likeliest tokens")
    top_p: Number | None = Field(
        None, gt=0, le=1, description="sample among the likeliest tokens that have this probability together"
    )
    repetition_penalty: Number | None = Field(
        None, gt=0, le=100, description="above 1 makes tokens that the text has less likely, below 1 likelier"
    )
    seed: Integer | None = Field(None, ge=0, lt=2**63, description="seed of the sampling")
    stop: Texts | None = Field(None, description="text that ends the generation, or a JSON list of such texts")
    num_beams: Integer | None = Field(
        None, ge=1, le=1024, description="texts to follow at the same time in beam search"
    )
    length_penalty: Number | None = Field(
        None, ge=-2, le=10, description="above 0 makes beam search favour long texts, below 0 short ones"
    )
    early_stopping: EarlyStopping | None = Field(None, description="when beam search ends: true, false or 'never'")


_NONE = RequestOptions()


def parse_options(raw: Mapping[str, Any] | None) -> RequestOptions:
    """Check a request's parameters.

    Args:
        raw: parameter name to int, float, bool or text, as Triton delivers them.

    Raises:
        InvalidArgument: an unknown name, a wrong type or a value out of range; names the option and what is accepted.
    """
    if not raw:
        return _NONE
    own = {k: v for k, v in raw.items() if k not in _NO_OPTIONS and not k.startswith(_TRITON_PREFIX)}
    if not own:
        return _NONE
    for name in own:
        if name == "stream":  # Triton's `generate` passes on as an option what is no input of the model
            raise InvalidArgument(
                "unknown request option 'stream': this model does not generate text, and only those that do have this "
                "input; leave it out"
            )
        if name not in RequestOptions.model_fields:
            raise InvalidArgument(
                f"unknown request option '{name[:80]}': {did_you_mean(name, RequestOptions.model_fields)}"
            )
    try:
        return RequestOptions.model_validate(own)
    except ValidationError as error:
        raise InvalidArgument("; ".join(map(_sentence, error.errors()))) from None


def _sentence(problem: Any) -> str:
    name = ".".join(str(part) for part in problem["loc"])
    message = str(problem["msg"]).removeprefix("Value error, ")
    meaning = RequestOptions.model_fields[name].description
    return f"request option '{name}': {message[0].lower()}{message[1:]} ({meaning})"
