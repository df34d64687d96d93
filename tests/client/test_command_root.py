"""The root of the `tidal` command, in a subprocess so that its imports are visible."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidal_client.extras import install_command

_COMMANDS = ("doctor", "build", "serve", "models", "controller", "infer", "load")
# Code of a distribution that adds entry points, on the path of the process under test.
_PLUGIN = """
import typer
def hello(name: str) -> None:
    "Greets."
    print("hello", name)
group = typer.Typer()
@group.command()
def one() -> None:
    print("one")
@group.command()
def two() -> None:
    print("two")
def late() -> None:
    import a_module_nobody_has.deeper
"""


def _run(*args: str, path: Path | None = None, code: str | None = None) -> subprocess.CompletedProcess[str]:
    env = dict(os.environ, COLUMNS="200", NO_COLOR="1")
    if path is not None:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(path), env.get("PYTHONPATH")]))
    start = ["-c", code] if code else ["-m", "tidal_client.main"]
    command = [sys.executable, *start, *args]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH with additional subcommands, working and broken."""
    info = tmp_path / "plugins-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugins\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[tidal.commands]\nhello = a_plugin:hello\ngroup = a_plugin:group\nlate = a_plugin:late\n"
        "broken = needs_something:run\nours = needs_ours:run\nserve = needs_something:run\n"
    )
    (tmp_path / "a_plugin.py").write_text(_PLUGIN)
    (tmp_path / "needs_something.py").write_text("import a_module_nobody_has.deeper\n")
    (tmp_path / "needs_ours.py").write_text("import tidal_client.no_such_module\n")
    return tmp_path


def test_help_lists_every_command_and_imports_none() -> None:
    code = (
        "import sys\nfrom tidal_client.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "import json; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    done = _run("--help", code=code)
    for command in _COMMANDS:
        assert f" {command} " in done.stdout
    assert "Exit codes" in done.stdout
    modules = set(json.loads(done.stderr))
    heavy = {"numpy", "tritonclient", "pydantic", "openvino", "torch", "tidal", "tidal_builders"}
    assert not heavy & modules
    assert not {m for m in modules if m.startswith("tidal_client.commands")}


def test_the_library_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom tidal_client import *\n"
        "Client('grpc://127.0.0.1:1').close()\nClient('http://127.0.0.1:1').close()\n"
        "import json; print(json.dumps(sorted(sys.modules)))"
    )
    done = _run(code=code)
    modules = set(json.loads(done.stdout))
    assert {"numpy", "tritonclient.grpc", "tritonclient.http"} <= modules
    assert not {"torch", "transformers", "openvino", "pydantic", "typer", "rich", "tidal", "tidal_builders"} & modules


def test_version_and_usage() -> None:
    assert _run("--version").stdout.startswith("tidal 0.")
    wrong = _run("infr")
    assert wrong.returncode == 2
    assert "infer" in wrong.stderr
    assert _run("infer").returncode == 2


def test_functions_and_typers_are_both_accepted(plugins: Path) -> None:
    assert _run("hello", "you", path=plugins).stdout == "hello you\n"
    assert "Usage: tidal hello" in _run("hello", "--help", path=plugins).stdout
    assert _run("group", "two", path=plugins).stdout == "two\n"
    assert "Usage: tidal group one" in _run("group", "one", "--help", path=plugins).stdout
    assert "Provided by a_plugin" in _run("--help", path=plugins).stdout


def test_a_missing_extra_is_named(plugins: Path) -> None:
    for command, remedy in {
        "serve": install_command("serve"),
        "broken": "pip install a_module_nobody_has",
        "late": "pip install a_module_nobody_has",
    }.items():
        done = _run(command, path=plugins)
        assert done.returncode == 2
        assert done.stdout == ""
        expected = (
            f"tidal {command} requires the Python module 'a_module_nobody_has', which is not installed: {remedy}\n"
        )
        assert done.stderr == expected


def test_a_missing_module_of_tidal_is_not_reported_as_an_extra(plugins: Path) -> None:
    done = _run("ours", path=plugins)
    assert done.returncode == 1
    assert "No module named 'tidal_client.no_such_module'" in done.stderr
    assert "pip install" not in done.stderr
