"""Reads spec files: one YAML file per model, whose `kind` selects the schema."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema

from tidal.errors import InvalidArgument, did_you_mean
from tidal_builders.kinds import KINDS
from tidal_builders.spec import ModelSpec


def spec_schema() -> dict[str, Any]:
    """JSON schema of a spec file: one schema per kind, selected by `kind`."""
    models = [kind.spec_type for kind in KINDS.values()]
    references, definitions = models_json_schema([(model, "validation") for model in models])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tidal build spec",
        "oneOf": [references[model, "validation"] for model in models],
        "discriminator": {"propertyName": "kind"},
        **definitions,
    }


def load_spec(path: Path) -> ModelSpec:
    """Read one spec file.

    Args:
        path: Spec file.

    Raises:
        InvalidArgument: The file is missing or not a YAML mapping, or a field is unknown, missing or wrong.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"spec {path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"spec {path} is not valid YAML: {' '.join(str(error).split())}") from None
    return parse_spec(content, str(path))


def parse_spec(content: object, origin: str) -> ModelSpec:
    """Validate a spec's content.

    Args:
        content: Parsed YAML.
        origin: Name of the spec in errors.

    Raises:
        InvalidArgument: The content is wrong; names the field, the value and what is accepted.
    """
    if not isinstance(content, dict):
        raise InvalidArgument(f"spec {origin} must be a mapping of fields, got {type(content).__name__}")
    kind = content.get("kind")
    if kind is None:
        raise InvalidArgument(f"spec {origin} has no field 'kind'; accepted: {', '.join(sorted(KINDS))}")
    if kind not in KINDS:
        raise InvalidArgument(f"spec {origin} has the unknown kind '{kind}': {did_you_mean(str(kind), KINDS)}")
    model = KINDS[kind].spec_type
    try:
        return model.model_validate(content)
    except ValidationError as error:
        problems = "; ".join(_problem(problem, model, problem["loc"]) for problem in error.errors())
        raise InvalidArgument(f"spec {origin}: {problems}") from None


def _problem(problem: Any, model: type[BaseModel], location: tuple[str | int, ...]) -> str:
    """One problem that pydantic found, as a clause; `location` is the path of the field within `model`."""
    if not location:
        return str(problem["msg"]).removeprefix("Value error, ")
    name = str(location[0])
    field = model.model_fields.get(name)
    inner = location[1:]
    entry = ""
    if inner and isinstance(inner[0], int):
        entry, inner = f" entry {inner[0] + 1}", inner[1:]
    nested = _nested(field.annotation) if field is not None else None
    if nested is not None and inner:
        return f"field '{name}'{entry}: {_problem(problem, nested, inner)}"
    if problem["type"] == "extra_forbidden":
        return f"unknown field '{name}': {did_you_mean(name, model.model_fields)}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    meaning = field.description if field is not None else None
    return f"field '{name}'{entry}: {message[0].lower()}{message[1:]}" + (f" ({meaning})" if meaning else "")


def _nested(annotation: Any) -> type[BaseModel] | None:
    """The model in a field's annotation, which may be optional or a collection of it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in typing.get_args(annotation) if (found := _nested(each)) is not None), None)
