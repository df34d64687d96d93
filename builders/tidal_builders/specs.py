"""What a build is asked for: one YAML file a model, typed by its `kind`."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.json_schema import models_json_schema

from tidal.errors import InvalidArgument, did_you_mean
from tidal_builders.flover.spec import FloverSpec
from tidal_builders.otas.spec import OtasSpec
from tidal_builders.pets.spec import PetsSpec
from tidal_builders.runtime_options import RuntimeOptions
from tidal_builders.tabi.spec import TabiSpec


class ArloSpec(RuntimeOptions):
    """A text classifier, served by the `arlo` backend."""

    model_config = ConfigDict(title="arlo")

    kind: Literal["arlo"]
    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", description="the model's name in the repository")
    model: str = Field(
        min_length=1,
        description="Hugging Face id, or a folder in its format: absolute, or relative to the spec file "
        "(begin it with ./ or ../ to be told when it is missing)",
    )
    revision: str | None = Field(None, description="branch, tag or commit of a Hugging Face id")
    labels: tuple[str, ...] | None = Field(None, min_length=1, description="label names; default: the model's own")
    outputs: tuple[Literal["logits", "attention_received"], ...] = Field(
        ("logits",),
        description="attention_received: for every token the attention that it receives, summed over queries, heads "
        "and layers",
    )
    truncate: bool = Field(False, description="serve a longer text cut to the limit instead of refusing it")

    @field_validator("outputs")
    @classmethod
    def _with_logits(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "logits" not in value or len(set(value)) != len(value):
            raise ValueError(f"expected logits and other outputs once each, got {list(value)}")
        return value


Spec = ArloSpec | TabiSpec | PetsSpec | OtasSpec | FloverSpec
# Every kind of spec that `tidal build` reads.
SPECS: dict[str, type[ArloSpec] | type[TabiSpec] | type[PetsSpec] | type[OtasSpec] | type[FloverSpec]] = {
    "arlo": ArloSpec,
    "tabi": TabiSpec,
    "pets": PetsSpec,
    "otas": OtasSpec,
    "flover": FloverSpec,
}


def spec_schema() -> dict[str, Any]:
    """JSON schema of a spec file: one of the kinds, told apart by `kind`."""
    references, definitions = models_json_schema([(model, "validation") for model in SPECS.values()])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tidal build spec",
        "oneOf": [references[model, "validation"] for model in SPECS.values()],
        "discriminator": {"propertyName": "kind"},
        **definitions,
    }


def load_spec(path: Path) -> Spec:
    """Read one spec file.

    Raises:
        InvalidArgument: the file is missing or no YAML mapping, or a field is unknown, missing or wrong.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"spec {path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"spec {path} is not valid YAML: {' '.join(str(error).split())}") from None
    return parse_spec(content, str(path))


def parse_spec(content: object, origin: str) -> Spec:
    """Check a spec's content; `origin` names it in errors.

    Raises:
        InvalidArgument: names the field, what came and what is accepted.
    """
    if not isinstance(content, dict):
        raise InvalidArgument(f"spec {origin} must be a mapping of fields, got {type(content).__name__}")
    kind = content.get("kind")
    if kind is None:
        raise InvalidArgument(f"spec {origin} names no kind; accepted: {', '.join(sorted(SPECS))}")
    if kind not in SPECS:
        raise InvalidArgument(f"spec {origin} has the unknown kind '{kind}': {did_you_mean(str(kind), SPECS)}")
    model = SPECS[kind]
    try:
        return model.model_validate(content)
    except ValidationError as error:
        problems = "; ".join(_sentence(problem, model, problem["loc"]) for problem in error.errors())
        raise InvalidArgument(f"spec {origin}: {problems}") from None


def _sentence(problem: Any, model: type[BaseModel], place: tuple[str | int, ...]) -> str:
    """What is wrong with a field; `place` says where it is, from `model` on."""
    if not place:
        return str(problem["msg"]).removeprefix("Value error, ")
    name = str(place[0])
    field = model.model_fields.get(name)
    inner = place[1:]
    entry = ""
    if inner and isinstance(inner[0], int):
        entry, inner = f" entry {inner[0] + 1}", inner[1:]
    nested = _nested(field.annotation) if field is not None else None
    if nested is not None and inner:
        return f"field '{name}'{entry}: {_sentence(problem, nested, inner)}"
    if problem["type"] == "extra_forbidden":
        return f"unknown field '{name}': {did_you_mean(name, model.model_fields)}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    meaning = field.description if field is not None else None
    return f"field '{name}'{entry}: {message[0].lower()}{message[1:]}" + (f" ({meaning})" if meaning else "")


def _nested(annotation: Any) -> type[BaseModel] | None:
    """The model that a field holds: itself, one or none, or any number."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in typing.get_args(annotation) if (found := _nested(each)) is not None), None)
