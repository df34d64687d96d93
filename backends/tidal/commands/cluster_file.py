"""A YAML file with the options of `tidal cluster start` and of each node's `join`, the same for all machines."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from tidal.commands.output import one_sentence
from tidal.errors import InvalidArgument, did_you_mean

PORT = 6379
"""Default port of the head."""

_LOCAL = "127.0.0.1"
_USAGE = 2
# What the file itself has to say, or what belongs to one call of a command.
_NOT_DESCRIBED = ("config", "name", "address", "block", "json", "help")
_SECTIONS = ("head", "nodes")
_PATHS = ("token_file", "ca", "certificate", "key")


def own_name() -> str:
    """Return the default name of a node: the name of this machine, without its domain."""
    return socket.gethostname().partition(".")[0]


def _describe_head(context: typer.Context, file: Path | None) -> Path | None:
    if file is not None:
        with one_sentence(_USAGE):
            context.default_map = _read(file, context)["head"]
    return file


def _describe_node(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    """Use the node's section once both options that select it are known; they come in any order."""
    context.meta[f"{__name__}.{parameter.name}"] = value
    known = {name: context.meta.get(f"{__name__}.{name}", ...) for name in ("config", "name")}
    file, name = known["config"], known["name"]
    if file is None or ... in (file, name):
        return value
    with one_sentence(_USAGE):
        described = _read(file, context)
        head, nodes, node = described["head"], described["nodes"], name or own_name()
        if node not in nodes:
            raise InvalidArgument(f"{file} has no node '{node}' (--name): {did_you_mean(node, nodes)}")
        port = head.get("port", PORT)
        if port == 0:
            raise InvalidArgument(f"{file}: field 'head.port': nodes of a described cluster need a fixed port, got 0")
        context.default_map = {"address": f"{head.get('host', _LOCAL)}:{port}", **nodes[node]}
    return value


_HELP = "YAML file that describes the cluster. Options given here replace its values."
HeadFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", exists=True, is_eager=True, callback=_describe_head, help=_HELP),
]
NodeFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", exists=True, is_eager=True, callback=_describe_node, help=_HELP),
]
NodeName = Annotated[
    str | None,
    typer.Option(is_eager=True, callback=_describe_node, help="Name of the node.", show_default="name of this machine"),
]


def _read(file: Path, context: typer.Context) -> dict[str, dict[str, Any]]:
    """Return the sections of a file, all of whose names are options of their command.

    Args:
        file: The file; paths in it are relative to its folder.
        context: Context of `start` or `join`.

    Raises:
        InvalidArgument: The file cannot be read, or a section or name is unknown or no mapping.
    """
    import yaml

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"{file} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{file} is not valid YAML: {' '.join(str(error).split())}") from None
    sections = _mapping(content, str(file), "sections")
    for name in sections:
        if name not in _SECTIONS:
            raise InvalidArgument(f"{file}: unknown section '{name}': {did_you_mean(name, _SECTIONS)}")
    head, nodes = (_mapping(sections.get(name) or {}, str(file), f"'{name}'") for name in _SECTIONS)
    described = {
        name: _options(_mapping(node or {}, str(file), f"'nodes.{name}'"), f"nodes.{name}", "join", file, context)
        for name, node in nodes.items()
    }
    return {"head": _options(head, "head", "start", file, context), "nodes": described}


def _mapping(value: object, file: str, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArgument(f"{file}: {what} must be a mapping, got {type(value).__name__}")
    return {str(name): each for name, each in value.items()}


def _options(
    values: Mapping[str, Any], section: str, command: str, file: Path, context: typer.Context
) -> dict[str, Any]:
    """Return the values by parameter of a command, paths relative to the file's folder."""
    assert context.parent is not None
    group: Any = context.parent.command
    parameters = {_option(each): str(each.name) for each in group.commands[command].params}
    accepted = [name for name in parameters if name not in _NOT_DESCRIBED]
    found = {}
    for name, value in values.items():
        if name not in accepted:
            raise InvalidArgument(f"{file}: unknown field '{section}.{name}': {did_you_mean(name, accepted)}")
        found[parameters[name]] = str(file.parent / value) if name in _PATHS and isinstance(value, str) else value
    return found


def _option(parameter: Any) -> str:
    """Name of a parameter in the file: its option without dashes at the start, with underscores inside."""
    return str(max(parameter.opts, key=len)).lstrip("-").replace("-", "_")
