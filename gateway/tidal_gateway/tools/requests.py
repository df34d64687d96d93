"""The fields `tools`, `tool_choice` and `response_format` of a chat, as options of the model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, StrictStr

from tidal_client.options import Parameter
from tidal_gateway.errors import invalid
from tidal_gateway.tools.calls import CallParser
from tidal_gateway.tools.formats import ToolFormat

# Blanks as chat templates write them.
_BLANKS: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_OBJECT: Final = {"type": "object"}


class Function(BaseModel):
    """A function that the model may call."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: StrictStr = Field(min_length=1)
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    """A tool: a function."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: StrictStr = "function"
    function: Function


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How a chat may use tools.

    Attributes:
        tools: Tools that the template offers to the model; empty for none.
        form: Format of the calls.
        forced: Functions of which one has to be called; empty: the model decides.
        named: Whether the client named the function.
        several: Whether the answer may have several calls.
    """

    tools: Sequence[Tool]
    form: ToolFormat
    forced: Sequence[Function]
    named: bool
    several: bool

    def parser(self, *, whole: bool) -> CallParser:
        """Return the parser of an answer that arrives whole, or in parts."""
        names = [each.function.name for each in self.tools]
        return CallParser(self.form, names, several=self.several, whole=whole)

    def options(self) -> dict[str, Parameter]:
        """Return the options that force the model to call a function; none if it decides."""
        return forced_options(self.form, self.forced, several=self.several) if self.forced else {}


def read_tool_use(
    tools: Sequence[Tool] | None, choice: object, several: bool | None, form: ToolFormat | None, model: str
) -> ToolUse | None:
    """Return how a chat may use tools; None if it may not.

    Args:
        tools: Field `tools`.
        choice: Field `tool_choice`.
        several: Field `parallel_tool_calls`.
        form: Format of the model's calls; None if unknown.
        model: Name of the model.

    Raises:
        Refusal: The fields do not fit each other, or the model.
    """
    if not tools:
        if choice not in (None, "none", "auto"):
            raise invalid("field 'tool_choice' requires tools", "tool_choice")
        return None
    for tool in tools:
        if tool.type != "function":
            raise invalid(f"field 'tools': expected tools of type function, got '{tool.type[:40]}'", "tools")
    if choice == "none":
        return None
    if form is None:
        raise invalid(
            f"field 'tools': model '{model}' has no known format of tool calls; leave it out, or start "
            f"the gateway with --tool-format {model}=FORMAT",
            "tools",
        )
    forced, named = _forced([each.function for each in tools], choice)
    if not forced and any(each.function.strict for each in tools):
        raise invalid(
            "field 'tools': strict is supported with tool_choice 'required' or a function only; leave it out", "tools"
        )
    return ToolUse(tools, form, forced, named, several is not False and not named)


def _forced(functions: Sequence[Function], choice: object) -> tuple[Sequence[Function], bool]:
    if choice in (None, "auto"):
        return (), False
    if choice == "required":
        return functions, False
    name = None
    if isinstance(choice, Mapping) and choice.get("type") == "function" and isinstance(choice.get("function"), Mapping):
        name = choice["function"].get("name")
    if not isinstance(name, str):
        shown = str(choice)[:80]
        raise invalid(
            "field 'tool_choice': expected auto, none, required or {type: function, function: {name}}, "
            f"got {shown!r}",
            "tool_choice",
        )
    found = [each for each in functions if each.name == name]
    if not found:
        names = ", ".join(each.name for each in functions)
        raise invalid(f"field 'tool_choice': no tool is named '{name[:80]}'; tools are: {names}", "tool_choice")
    return found[:1], True


def forced_options(form: ToolFormat, functions: Sequence[Function], *, several: bool) -> dict[str, Parameter]:
    """Return the options of guided output that allow nothing but calls.

    Args:
        form: Format of the calls.
        functions: Functions that may be called.
        several: Whether several calls are allowed.
    """
    definitions: dict[str, Any] = {}
    calls = [_call_schema(each, form.arguments, definitions) for each in functions]
    schema: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if form.array:
        schema = {"type": "array", "items": schema, "minItems": 1, **({} if several else {"maxItems": 1})}
    schema = {"x-guidance": _BLANKS, **schema}
    if definitions:
        schema["$defs"] = definitions
    if not form.opening:
        return {"guided_json": json.dumps(schema)}
    opening, closing = json.dumps(f"{form.opening}\n"), json.dumps(f"\n{form.closing}")
    start = 'call ("\\n" call)*' if several else "call"
    return {"guided_grammar": f"start: {start}\ncall: {opening} body {closing}\nbody: %json {json.dumps(schema)}\n"}


def _call_schema(function: Function, arguments: str, definitions: dict[str, Any]) -> dict[str, Any]:
    parameters = dict(function.parameters or {"type": "object", "properties": {}, "additionalProperties": False})
    # References are from the root of the whole schema.
    for name, value in parameters.pop("$defs", {}).items():
        if definitions.setdefault(name, value) != value:
            raise invalid(f"field 'tools': two functions define '{name[:80]}' in $defs in different ways", "tools")
    return {
        "type": "object",
        "properties": {"name": {"const": function.name}, arguments: parameters},
        "required": ["name", arguments],
        "additionalProperties": False,
    }


def response_options(response_format: Mapping[str, Any] | None) -> dict[str, Parameter]:
    """Return the options of guided output for the field `response_format`.

    Raises:
        Refusal: It is of another form.
    """
    if response_format is None or response_format == {"type": "text"}:
        return {}
    if response_format == {"type": "json_object"}:
        return {"guided_json": json.dumps(_OBJECT)}
    described = response_format.get("json_schema")
    if response_format.get("type") != "json_schema" or not isinstance(described, Mapping):
        raise invalid(
            "field 'response_format': expected {type: text}, {type: json_object} or {type: json_schema, json_schema: "
            f"{{schema}}}}, got {str(response_format)[:80]}",
            "response_format",
        )
    schema = described.get("schema", _OBJECT)
    if not isinstance(schema, Mapping):
        raise invalid("field 'response_format': expected a JSON schema as an object in 'schema'", "response_format")
    return {"guided_json": json.dumps(schema)}
