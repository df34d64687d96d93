"""The page of the command line, from the commands themselves."""

from __future__ import annotations

import enum
import inspect
import re
import typing
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from buildtools.reference.pages import page, section, table


def cli_page() -> str:
    """Every command with its help, arguments and options."""
    from tidal_client.main import GROUP, _load

    entries = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    commands = [command for entry in entries for command in _leaves(_load(entry), f"tidal {entry.name}")]
    parts = [_command(name, command) for name, command in commands]
    return page(
        "Command line",
        "Every command of `tidal` with its options, as `tidal COMMAND --help` prints them.",
        "Each command is listed once, in alphabetical order. The exit codes of all commands are in one table, "
        "[exit codes](exit-codes.md).",
        *parts,
    )


def _leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every command with its full name; a group comes before its subcommands."""
    subcommands = getattr(command, "commands", None)
    yield name, command
    for inner, each in sorted((subcommands or {}).items()):
        yield from _leaves(each, f"{name} {inner}")


def _command(name: str, command: Any) -> str:
    group = hasattr(command, "commands")
    usage = " ".join([name, *(["COMMAND"] if group else [*_arguments(command.params), "[OPTIONS]"])])
    options = "" if group else _parameters(command.params)
    return section(name, f"```text\n{usage}\n```", _help(command.help or ""), options)


def _arguments(parameters: Sequence[Any]) -> list[str]:
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    return [_argument_name(each) if each.required else f"[{_argument_name(each)}]" for each in arguments]


def _argument_name(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return re.sub(r"[\[\]]|\.\.\.$", "", str(name)) + ("..." if parameter.nargs == -1 else "")


def _help(text: str) -> str:
    """A help text, which is Markdown, below a heading of the second level."""
    text = inspect.cleandoc(text).replace("\b\n", "")
    return re.sub(r"^(#+) ", r"##\1 ", text, flags=re.MULTILINE)


def _parameters(parameters: Sequence[Any]) -> str:
    rows = []
    for parameter in parameters:
        if getattr(parameter, "hidden", False):
            continue
        if parameter.param_type_name == "argument":
            names = f"`{_argument_name(parameter)}`"
        else:
            names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        rows.append((names, _accepted(parameter), _default(parameter), parameter.help or ""))
    return table(("option", "accepted", "default", "meaning"), rows) if rows else ""


def _accepted(parameter: Any) -> str:
    if getattr(parameter, "is_flag", False):
        return ""
    annotation = parameter.type_descriptor.annotation
    inner = typing.get_args(annotation)[0] if typing.get_origin(annotation) is list else annotation
    if isinstance(inner, type) and issubclass(inner, enum.Enum):
        text = ", ".join(f"`{each.value}`" for each in inner)
    else:
        text = {int: "whole number", float: "number", Path: "path"}.get(inner, _metavar(parameter))
        bounds = [
            f"{word} {value:,}"
            for word, value in (("from", parameter.min), ("up to", parameter.max))
            if value is not None
        ]
        text = " ".join([text, *bounds])
    return f"{text}; repeatable" if parameter.multiple or parameter.nargs == -1 else text


def _metavar(parameter: Any) -> str:
    """Name of the value that an argument or option takes, without the marks of an optional or repeated one."""
    name = str(parameter.metavar or "text")
    if parameter.nargs == -1:
        name = name.removesuffix("...")
    optional = re.fullmatch(r"\[([^][]*)\]", name)
    return optional[1] if optional else name


def _default(parameter: Any) -> str:
    shown = getattr(parameter, "show_default", None)
    if isinstance(shown, str):
        return shown
    value = parameter.default
    if callable(value) or value is None or value == () or value == [] or "Sentinel" in type(value).__name__:
        return "required" if parameter.required else ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{getattr(value, 'value', value)}`"
