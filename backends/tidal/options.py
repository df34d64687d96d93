"""Options of a request, which clients send as Triton request parameters: parsed and checked in one place.

Every backend checks all options and uses those that it knows how to use. An ensemble passes the same parameters to
all its models, so an option that a system does not use is accepted; an unknown name is always an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from tidal.errors import InvalidArgument, did_you_mean

# Sent by a model that calls another model of its server, and by clients in streams: error messages have to contain
# the code, see `tidal.triton.coded_errors`.
CODED_ERRORS = "tidal_coded_errors"
# Sent by a model that calls another model of its server, for the request log.
FROM_MODEL = "tidal_from_model"
# Parameters that Triton or its HTTP frontends add to those of the client.
_TRITON_OWN = frozenset({"id", "priority", "timeout", "sequence_id", "sequence_start", "sequence_end", "headers"})
_NO_OPTIONS = _TRITON_OWN | {CODED_ERRORS, FROM_MODEL}
_TRITON_PREFIX = "triton_"
# Limit on all parameters of a request together, as JSON: several times the longest accepted options, which are `stop`
# with 8 texts of 256 characters, each of which JSON may write as 12.
MAX_OPTIONS_CHARS = 128 << 10
_MAX_NUMBER_CHARS = 64


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


_MAX_STOPS, _MAX_STOP_CHARS = 8, 256


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
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise ValueError("expected texts of at least 1 character")
    if not 1 <= len(stops) <= _MAX_STOPS or max(map(len, stops)) > _MAX_STOP_CHARS:
        raise ValueError(f"expected 1 to {_MAX_STOPS} texts of at most {_MAX_STOP_CHARS} characters")
    return tuple(stops)


def _early_stopping(value: object) -> object:
    """Accept a boolean also as text: a request made inside Triton cannot carry a boolean."""
    known = {"true": True, "false": False, "never": "never"}
    parsed = known.get(str(value).lower()) if isinstance(value, bool | str) else None
    if parsed is None:
        raise ValueError(f"expected true, false or 'never', got {str(value)[:40]!r}")
    return parsed


Number = Annotated[float, BeforeValidator(_number)]
Integer = Annotated[int, BeforeValidator(_integer)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_stops)]
EarlyStopping = Annotated[Literal[True, False, "never"], BeforeValidator(_early_stopping)]


class RequestOptions(BaseModel):
    """Options of one request. An option that was not sent is None, which a backend replaces by its default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: str | None = Field(None, min_length=1, max_length=256, description="task that the query belongs to")
    latency_ms: Number | None = Field(None, gt=0, le=3_600_000, description="deadline in milliseconds after arrival")
    utility: Number | None = Field(None, ge=0, le=1e6, description="utility of an answer within the deadline")
    accuracy: Number | None = Field(None, ge=0, le=1, description="lowest accepted score, by the model's own metric")
    max_level: Integer | None = Field(None, ge=1, le=1000, description="last level of a cascade that may run, from 1")
    max_tokens: Integer | None = Field(None, ge=1, le=1_000_000, description="maximum number of tokens to generate")
    temperature: Number | None = Field(None, ge=0, le=100, description="sampling temperature; 0 is greedy decoding")
    top_k: Integer | None = Field(
        None, ge=0, le=1_000_000, description="sample from the k most likely tokens; 0 for no limit"
    )
    top_p: Number | None = Field(
        None, gt=0, le=1, description="sample from the most likely tokens that together have this probability"
    )
    repetition_penalty: Number | None = Field(
        None, gt=0, le=100, description="above 1 makes repeated tokens less likely, below 1 more likely"
    )
    seed: Integer | None = Field(None, ge=0, lt=2**63, description="random seed for sampling")
    stop: Texts | None = Field(None, description="text that ends generation, or a JSON list of such texts")
    num_beams: Integer | None = Field(None, ge=1, le=1024, description="number of beams in beam search")
    length_penalty: Number | None = Field(
        None, ge=-2, le=10, description="above 0 makes beam search prefer long texts, below 0 short ones"
    )
    early_stopping: EarlyStopping | None = Field(None, description="when beam search ends: true, false or 'never'")


_NONE = RequestOptions()


def parse_options(raw: Mapping[str, Any] | None) -> RequestOptions:
    """Check a request's parameters.

    Args:
        raw: Value by parameter name as Triton passes them: int, float, bool or text.

    Returns:
        The options; None for each that was not sent.

    Raises:
        InvalidArgument: An option is unknown, of a wrong type or out of range; names the option and what is accepted.
    """
    if not raw:
        return _NONE
    own = {k: v for k, v in raw.items() if k not in _NO_OPTIONS and not k.startswith(_TRITON_PREFIX)}
    if not own:
        return _NONE
    for name in own:
        if name == "stream":  # `generate` sends a name that is not an input of the model as an option
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
