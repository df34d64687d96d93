"""Pages of specs, request options and parameters, from the models that check them."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from buildtools.reference.pages import SYSTEMS, note, page, section, table

_LIBRARY = Path(__file__).resolve().parents[2] / "backends" / "tidal"


def spec_page() -> str:
    """Every field of every kind of spec."""
    from tidal_builders.specs import spec_schema

    schema = spec_schema()
    definitions: Mapping[str, Any] = schema["$defs"]
    kinds = [_definition(each["$ref"], definitions) for each in schema["oneOf"]]
    used: dict[str, Mapping[str, Any]] = {}
    parts = []
    for kind in kinds:
        name = kind["properties"]["kind"]["const"]
        fields = _fields(kind, definitions, used, required_first=True)
        parts.append(section(f"kind: {name}", kind.get("description", ""), fields))
    pending = list(used)
    for name in pending:
        before = set(used)
        fields = _fields(used[name], definitions, used)
        pending += [each for each in used if each not in before]
        parts.append(section(name, used[name].get("description", ""), fields))
    return page(
        "Specs of models",
        "Every field of the YAML files that `tidal build` reads, by the kind of model.",
        "One file describes one model; `kind` selects the table below. Unknown fields are errors. "
        "`tidal build --schema` prints the same as a JSON schema, for editors and pipelines. A path is absolute or "
        "relative to the spec file.",
        *parts,
    )


def _definition(reference: str, definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = definitions[reference.rpartition("/")[2]]
    return found


def _fields(
    schema: Mapping[str, Any],
    definitions: Mapping[str, Any],
    used: dict[str, Mapping[str, Any]],
    *,
    required_first: bool = False,
) -> str:
    required = schema.get("required", ())
    names = list(schema["properties"])
    if required_first:
        names.sort(key=lambda name: (name not in required, name != "kind"))
    rows = []
    for name in names:
        field = schema["properties"][name]
        default = "required" if name in required else _json_default(field)
        rows.append((f"`{name}`", _json_type(field, definitions, used), default, field.get("description", "")))
    return table(("field", "accepted", "default", "meaning"), rows)


def _json_default(field: Mapping[str, Any]) -> str:
    value = field.get("default")
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, list):
        return f"`[{', '.join(map(str, value))}]`"
    if isinstance(value, Mapping):
        return ", ".join(f"`{key}: {each}`" for key, each in value.items() if each is not None)
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _json_type(field: Mapping[str, Any], definitions: Mapping[str, Any], used: dict[str, Mapping[str, Any]]) -> str:
    """What a field accepts, in words; named mappings are added to `used` and described below."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        definition = definitions[name]
        if "enum" in definition:
            return ", ".join(f"`{value}`" for value in definition["enum"])
        used.setdefault(name, definition)
        return f"mapping, see [{name}](#{name.lower()})"
    if "anyOf" in field:
        each = [_json_type(one, definitions, used) for one in field["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(filter(None, each)))
    if "enum" in field:
        return ", ".join(f"`{_json(value)}`" for value in field["enum"])
    if "const" in field:
        return f"`{_json(field['const'])}`"
    kind = field.get("type")
    if kind == "array":
        inner = _json_type(field.get("items", {}), definitions, used)
        least = f"at least {field['minItems']} " if field.get("minItems", 0) > 1 else ""
        return f"list of {least}{inner.replace('mapping,', 'mappings,')}" if inner else "list"
    words = {"integer": "whole number", "number": "number", "string": "text", "boolean": "`true`, `false`"}
    if field.get("format") == "path":
        return "file"
    return " ".join(filter(None, [words.get(str(kind), "mapping" if kind == "object" else ""), _bounds(field)]))


def _json(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bounds(field: Mapping[str, Any]) -> str:
    words = {
        "exclusiveMinimum": "above",
        "minimum": "from",
        "exclusiveMaximum": "below",
        "maximum": "up to",
    }
    return " ".join(f"{word} {_figure(field[key])}" for key, word in words.items() if key in field)


def options_page() -> str:
    """Every request option."""
    from tidal.options import RequestOptions

    schema = RequestOptions.model_json_schema()
    rows = [
        (
            f"`{name}`",
            _option_type(name, field, RequestOptions.model_fields[name].metadata),
            _used_by(name),
            field.get("description", ""),
        )
        for name, field in schema["properties"].items()
    ]
    return page(
        "Request options",
        "Every option that a request may carry, which backends use it, and what it accepts.",
        "Options are Triton request parameters: `parameters` of a KServe v2 request, keyword arguments of "
        "`tidal_client`. Numbers may be sent as int, float or numeric text. Every backend checks all options and uses "
        "its own, so that an ensemble can pass the same options to each of its models. An unknown name is INVALID_ARG "
        "with the nearest valid name.",
        table(("option", "accepted", "used by", "meaning"), [*rows, _TRACEPARENT]),
        section("Notes", note("request-options")),
    )


# No option of a system: the boundary takes it out of the parameters.
_TRACEPARENT = (
    "`traceparent`",
    "text; a malformed one is ignored",
    "all",
    "W3C trace context of the caller, which the spans of the request continue",
)
_PARSED_TYPES = {
    "stop": "text, or a JSON list of up to 8 texts, of 1 to 256 characters each",
    "early_stopping": '`true`, `false`, `"never"`',
    "stop_token_ids": "whole number, or a JSON list of up to 64",
    "logit_bias": "JSON object of up to 1,024 numbers from -100 up to 100 by token id",
    "guided_json": "JSON object of up to 65,536 characters",
    "guided_choice": "JSON list of up to 1,024 texts of 1 to 1,024 characters each",
    "chat_template_kwargs": "JSON object of up to 65,536 characters",
}


def _option_type(name: str, field: Mapping[str, Any], metadata: Sequence[Any]) -> str:
    if name in _PARSED_TYPES:
        return _PARSED_TYPES[name]
    kind = next(one for one in field["anyOf"] if one.get("type") != "null")
    if "enum" in kind:
        return ", ".join(f'`"{value}"`' for value in kind["enum"])
    if kind["type"] == "string":
        return f"text of {kind['minLength']} to {kind['maxLength']} characters"
    words = {"gt": "above", "ge": "from", "lt": "below", "le": "up to"}
    bounds = [
        f"{word} {_figure(getattr(each, key))}"
        for each in metadata
        for key, word in words.items()
        if hasattr(each, key)
    ]
    return " ".join([_json_type(kind, {}, {}), *bounds])


def _figure(value: float) -> str:
    return "2^63" if value == 2**63 else f"{value:,.12g}"


def _used_by(option: str) -> str:
    """Systems whose code reads the option from a request's options."""
    if option == "latency_ms":  # a matter of the boundary, which every backend has; `engine` checks it itself
        found = [*SYSTEMS, "engine"]
    elif option == "task":  # read by what the systems with tasks share
        found = [name for name in SYSTEMS if name in ("pets", "otas", "flover")]
    else:
        found = [name for name in SYSTEMS if option in _options_read(_LIBRARY / name) | _options_of_tasks(name)]
    return ", ".join(f"`{name}`" for name in found)


def _options_of_tasks(system: str) -> frozenset[str]:
    """Options of the tasks of encoders that a system has."""
    from tidal.encoder_tasks.entries import TASKS
    from tidal.pets.heads import HEADS

    tasks = {"arlo": TASKS.keys(), "pets": TASKS.keys() & HEADS.keys()}.get(system, ())
    return frozenset(option for name in tasks for option in TASKS[name].options)


@cache
def _options_read(folder: Path) -> frozenset[str]:
    names = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and _is_options(node.value):
                names.add(node.attr)
    return frozenset(names)


def _is_options(node: ast.expr) -> bool:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name in ("options", "_options")


def parameters_page() -> str:
    """Every parameter of every backend's config.pbtxt."""
    from tidal.arlo.parameters import ArloParameters
    from tidal.engine_model.parameters import EngineParameters
    from tidal.flover.parameters import FloverParameters
    from tidal.nearest.parameters import NearestParameters
    from tidal.otas.parameters import OtasParameters
    from tidal.pets.parameters import PetsParameters
    from tidal.tabi.parameters import TabiParameters
    from tidal.triton.parameters import HostParameters

    models = {
        "Every backend but engine": HostParameters,
        "arlo": ArloParameters,
        "tabi": TabiParameters,
        "pets": PetsParameters,
        "otas": OtasParameters,
        "flover": FloverParameters,
        "nearest": NearestParameters,
        "engine": EngineParameters,
    }
    parts = []
    for title, model in models.items():
        schema = model.model_json_schema()
        fields = _fields(schema, schema.get("$defs", {}), {})
        parts.append(section(title, fields, note(f"parameters {title.partition(' ')[0].lower()}")))
    return page(
        "Parameters of config.pbtxt",
        "Every parameter that an operator may set in a model's `config.pbtxt`, and what Tidal requires of that file.",
        note("parameters"),
        *parts,
    )
