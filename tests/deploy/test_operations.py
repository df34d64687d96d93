"""The pages on operation name commands, files, metrics and messages that exist."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from importlib.metadata import entry_points
from typing import Any

import pytest
import typer

from tests.deploy.project import ROOT, accepts, series
from tidal_client.main import GROUP, _load

_FOLDER = ROOT / "docs" / "how-to"
PAGES = [
    *(_FOLDER / f"{name}.md" for name in ("deploy-with-compose", "deploy-on-kubernetes", "size-and-tune", "upgrade")),
    *(_FOLDER / f"{name}.md" for name in ("build-in-a-pipeline", "secure-a-server", "monitor", "log-requests")),
    _FOLDER / "troubleshoot.md",
    *(ROOT / "docs" / "reference" / f"{name}.md" for name in ("exit-codes", "triton-releases")),
]
TEXT = "\n".join(page.read_text() for page in PAGES)
_COMMAND = re.compile(
    r"(?:^ *|[`(]|builder +|triton )(tidal (?:build|serve|models|controller|doctor|load|simulate|tasks) ?[^`\n#]*)",
    re.MULTILINE,
)


def commands() -> list[str]:
    joined = TEXT.replace("\\\n", " ")
    return sorted({found.strip() for found in _COMMAND.findall(joined) if "*" not in found or "specs/*" in found})


@cache
def sentences() -> str:
    """All text in the code."""
    texts = []
    for folder in ("backends", "builders", "client"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.append(node.value)
    return "\n".join(texts)


@pytest.mark.parametrize("command", commands())
def test_commands_are_those_of_the_code(command: str) -> None:
    name, *words = shlex.split(command)[1:]
    if not words:  # a command that is only named
        assert name in {entry.name for entry in entry_points(group=GROUP)}
        return
    try:
        accepts([name, *words])
    except typer.Exit as asked_for_help:
        assert asked_for_help.exit_code == 0
        assert "--help" in words


def test_symptoms_are_what_the_code_says() -> None:
    table = (_FOLDER / "troubleshoot.md").read_text()
    quoted = [
        text
        for line in table.splitlines()
        if line.startswith("| ")
        for text in re.findall(r'"([^"]+)"|`UNAVAILABLE: ([^`]+)`', line.split("|")[1])
    ]
    pieces = [piece.strip(" .,") for pair in quoted for piece in "".join(pair).split("...")]
    assert len(quoted) > 8
    missing = [piece for piece in pieces if piece and piece not in sentences()]
    assert missing == []


def test_metrics_that_are_named_are_published() -> None:
    names = re.findall(r"`(tidal_[a-z_<>*]+)`", TEXT)
    patterns = [
        re.sub(r"<system>|\*", "[a-z_]+", name)
        for name in names
        if name != "tidal_waiting" and len(name) > len("tidal_x")
    ]
    for pattern in patterns:
        assert any(re.fullmatch(f"{pattern}(_bucket)?", name) for name in series()), pattern


def test_files_that_are_named_exist() -> None:
    for name in re.findall(r"`(deploy/[^`]+\.(?:json|yml|yaml))`", TEXT):
        assert (ROOT / name).is_file(), name
    for name in re.findall(r"^\| `([a-z-]+\.yaml)` \|", TEXT, re.MULTILINE):
        assert (ROOT / "deploy" / "kubernetes" / name).is_file(), name
    for name in re.findall(r"^\| `([A-Z_]+)` \|", TEXT, re.MULTILINE):
        assert f"ARG {name}=" in (ROOT / "Dockerfile").read_text(), name


def leaves(command: Any, name: str) -> list[tuple[str, str]]:
    """Commands without subcommands, with their help."""
    if hasattr(command, "commands"):
        return [leaf for inner, each in command.commands.items() for leaf in leaves(each, f"{name} {inner}")]
    return [(name, command.help)]


def test_every_command_has_its_exit_codes_in_the_table() -> None:
    """Each code that a command's help explains has a cell, and no other code of it has one."""
    lines = (ROOT / "docs" / "reference" / "exit-codes.md").read_text().splitlines()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("| `") and "---" not in line
    ][1:]
    documented = {row[0].strip("`"): {code for code, cell in zip("0134", row[1:], strict=True) if cell} for row in rows}
    explained = {
        name: set(re.findall(r"(?:\*\*|`)(\d)(?:\*\*|`) ", text)) - {"2"}
        for entry in entry_points(group=GROUP)
        for name, text in leaves(_load(entry), entry.name)
    }
    assert documented == explained
