"""The root of the `tidal` command; in a subprocess where its imports matter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tidal_client.extras import install_command
from tidal_client.main import build_app

_COMMANDS = ("doctor", "build", "serve", "models", "controller", "infer", "load")
# Code of a distribution that adds entry points.
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


def _run(*args: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
    env = dict(os.environ, COLUMNS="200", NO_COLOR="1")
    start = ["-c", code] if code else ["-m", "tidal_client.main"]
    command = [sys.executable, *start, *args]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


def _invoke(*args: str) -> Result:
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(build_app(), args, prog_name="tidal")


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Additional subcommands on the path, working and broken."""
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
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("a_plugin", None)


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
    assert {"numpy", "tritonclient.grpc"} <= modules
    # The blocking HTTP client needs neither.
    assert not {"tritonclient.http", "aiohttp"} & modules
    assert not {"torch", "transformers", "openvino", "pydantic", "typer", "rich", "tidal", "tidal_builders"} & modules


def test_version_and_usage() -> None:
    assert _run("--version").stdout.startswith("tidal 0.")
    wrong = _invoke("infr")
    assert wrong.exit_code == 2
    assert "infer" in wrong.stderr
    assert _invoke("infer").exit_code == 2


def test_functions_and_typers_are_both_accepted(plugins: None) -> None:
    assert _invoke("hello", "you").stdout == "hello you\n"
    assert "Usage: tidal hello" in _invoke("hello", "--help").stdout
    assert _invoke("group", "two").stdout == "two\n"
    assert "Usage: tidal group one" in _invoke("group", "one", "--help").stdout
    assert "Provided by a_plugin" in _invoke("--help").stdout


def test_a_missing_extra_is_named(plugins: None) -> None:
    for command, remedy in {
        "serve": install_command("serve"),
        "broken": "pip install a_module_nobody_has",
        "late": "pip install a_module_nobody_has",
    }.items():
        done = _invoke(command)
        assert done.exit_code == 2
        assert done.stdout == ""
        expected = (
            f"tidal {command} requires the Python module 'a_module_nobody_has', which is not installed: {remedy}\n"
        )
        assert done.stderr == expected


def test_a_missing_module_of_tidal_is_not_reported_as_an_extra(plugins: None) -> None:
    done = _invoke("ours")
    assert done.exit_code == 1
    assert str(done.exception) == "No module named 'tidal_client.no_such_module'"
    assert "pip install" not in done.stderr
