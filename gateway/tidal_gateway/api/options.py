"""Request options: of a body's fields and the `x-tidal-` headers, those that Tidal's models have are passed on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from tidal.errors import did_you_mean
from tidal.options import RequestOptions
from tidal_client.options import Parameter
from tidal_gateway.errors import invalid

#: Prefix of the headers: `x-tidal-latency-ms` is the option `latency_ms`.
HEADER_PREFIX: Final = "x-tidal-"
# Options that change the form of an answer: fields of the APIs that have them, with their own meaning.
_FIELDS_ONLY: Final = frozenset({"logprobs", "n", "top_logprobs"})
#: Options that headers and further fields of a body may name.
HEADER_OPTIONS: Final = RequestOptions.model_fields.keys() - _FIELDS_ONLY
_MAX_SHOWN: Final = 80


class Body(BaseModel):
    """Body of a request; fields that are not declared may be options of Tidal's models."""

    model_config = ConfigDict(extra="allow", frozen=True)

    @property
    def extra(self) -> dict[str, Any]:
        """Fields that are not declared."""
        return self.model_extra or {}


B = TypeVar("B", bound=Body)


def parse_body(kind: type[B], content: bytes) -> B:
    """Check the body of a request.

    Args:
        kind: Declared fields.
        content: JSON.

    Raises:
        Refusal: It is not JSON, or a field is not accepted.
    """
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        first = problems[0]
        if first["type"] == "json_invalid":
            raise invalid(f"the body is not JSON: {first['msg'].removeprefix('Invalid JSON: ')}") from None
        # Of a union each member reports why it does not fit; the first one is the plainest.
        name = str(first["loc"][0]) if first["loc"] else None
        if name is None:
            raise invalid(f"the body is a JSON {_kind(first['input'])}; expected an object") from None
        if first["type"] == "missing":
            raise invalid(f"field '{name}' is missing; it is required", name) from None
        reasons = dict.fromkeys(_reason(each) for each in problems if each["loc"] and str(each["loc"][0]) == name)
        shown = repr(first["input"])[:_MAX_SHOWN]
        raise invalid(f"field '{name}': {' or '.join(reasons)}, got {shown}", name) from None


def _reason(problem: Any) -> str:
    message = str(problem["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    where = ".".join(str(part) for part in problem["loc"][1:] if isinstance(part, int))
    message = message[0].lower() + message[1:]
    expected = message if message.startswith(("expected", "list should", "string should")) else f"expected {message}"
    return f"at {where} {expected}" if where else expected


def _kind(value: Any) -> str:
    return {list: "array", str: "string", bool: "boolean", type(None): "null"}.get(type(value), "number")


def _header_options(headers: Mapping[str, str]) -> dict[str, str]:
    """Options that `x-tidal-` headers name."""
    found = {}
    for header, value in headers.items():
        if header.startswith(HEADER_PREFIX):
            name = header.removeprefix(HEADER_PREFIX).replace("-", "_")
            if name not in HEADER_OPTIONS:
                known = [HEADER_PREFIX + each.replace("_", "-") for each in HEADER_OPTIONS]
                raise invalid(f"unknown header '{header[:_MAX_SHOWN]}': {did_you_mean(header, known)}")
            found[name] = value
    return found


def passed_on(
    fields: Mapping[str, Any],
    headers: Mapping[str, str],
    declared: Mapping[str, Any],
    neutral: Mapping[str, tuple[Any, ...]] | None = None,
) -> dict[str, Parameter]:
    """Return the options of a request as parameters for the model, which checks their values.

    Args:
        fields: Fields of the body that the API's code does not use itself.
        headers: Headers by lower-case name.
        declared: Names of the fields that the API has, for the error about an unknown one.
        neutral: Values that request nothing, by name of a field that is not supported here.

    Raises:
        Refusal: A field is unknown or requests what the model cannot do, or a header and a field differ.
    """
    options: dict[str, Parameter] = {}
    for name, value in fields.items():
        if value is None:
            continue
        if neutral is not None and name in neutral:
            if not any(_same(value, each) for each in neutral[name]):
                raise invalid(f"field '{name}' is not supported here; leave it out", name)
        elif name in HEADER_OPTIONS:
            options[name] = _parameter(name, value)
        else:
            known = [*declared, *HEADER_OPTIONS, *(neutral or ())]
            raise invalid(f"unknown field '{name[:_MAX_SHOWN]}': {did_you_mean(name, set(known))}", name[:_MAX_SHOWN])
    return with_headers(options, headers)


def with_synonym(fields: Mapping[str, Any], name: str, synonym: str, value: object) -> dict[str, Any]:
    """Return a body's fields with the value of a field that is another name of an option.

    Args:
        fields: Fields that the API's code does not use itself.
        name: Name of the option.
        synonym: Name of the field.
        value: Value of the field; None: it was not sent.

    Raises:
        Refusal: The fields have both, with different values.
    """
    if value is None:
        return dict(fields)
    if fields.get(name) not in (None, value):
        raise invalid(f"fields '{name}' and '{synonym}' differ; send one of them", synonym)
    return {**fields, name: value}


def with_headers(options: Mapping[str, Parameter], headers: Mapping[str, str]) -> dict[str, Parameter]:
    """Return the options of a body and of the headers.

    Args:
        options: Options of the body.
        headers: Headers by lower-case name.

    Raises:
        Refusal: A header names no option, or has another value than the body.
    """
    found = dict(options)
    for name, text in _header_options(headers).items():
        if name in options and _text(options[name]) != text:
            header = HEADER_PREFIX + name.replace("_", "-")
            sent, shown = _text(options[name])[:_MAX_SHOWN], text[:_MAX_SHOWN]
            raise invalid(f"option '{name}' is '{sent}' in the body and '{shown}' in header {header}; send one", name)
        found[name] = text
    return found


def _text(value: Parameter) -> str:
    """A value as a header has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _same(value: Any, other: Any) -> bool:
    """Whether two values of JSON are equal; unlike in Python, false is not 0."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _parameter(name: str, value: Any) -> Parameter:
    if isinstance(value, list | dict):  # a request parameter has no structure: models read it as JSON
        return json.dumps(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise invalid(f"field '{name}': expected a number of at most 64 bits, got {str(value)[:40]}", name)
    found: Parameter = value
    return found
