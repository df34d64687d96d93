"""`tidal top` before a real server and gateway."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import termios
from typing import Any

import pytest
from typer.testing import CliRunner

from testing.gateways import RunningGateway
from testing.serving import TIDAL
from tests.gateway.conftest import Backend
from tidal_client.main import build_app

pytestmark = pytest.mark.server

Locked = tuple[RunningGateway, dict[str, str]]


def read_terminal(terminal: int) -> bytes:
    """What arrives next at a terminal."""
    assert select.select([terminal], [], [], 60)[0], "nothing arrives"
    return os.read(terminal, 1 << 16)


def rows(*arguments: str, key: str = "") -> dict[str, Any]:
    answer = CliRunner().invoke(build_app(), ["top", *arguments, "--once", "--json"], env={"TIDAL_API_KEY": key})
    assert answer.exit_code == 0, answer.output
    return {each["name"]: each for each in json.loads(answer.stdout)["models"]}


def test_top_of_a_server_and_of_a_gateway(backend: Backend, locked: Locked) -> None:
    gateway, keys = locked
    direct = rows(f"http://{backend.served.report['metrics']}/metrics")
    through = rows(gateway.url, key=keys["all"])
    for found in (direct, through):
        assert {name: found[name]["system"] for name in ("intents", "digits", "writer", "embedder")} == {
            "intents": "arlo", "digits": "otas", "writer": "flover", "embedder": "",
        }  # fmt: skip
    assert (through["encoder"]["state"], through["encoder"]["tasks"]) == ("ready", ["city"])
    assert through["intents"]["engine"] == "openvino"
    assert list(rows(gateway.url, key=keys["some"])) == ["digits", "encoder"]


def test_the_table(backend: Backend) -> None:
    target = f"http://{backend.served.report['metrics']}/metrics"
    answer = CliRunner().invoke(build_app(), ["top", target, "--once"])
    assert answer.exit_code == 0, answer.output
    assert re.search(r"^intents +", answer.stdout, re.MULTILINE)


def test_the_live_view_in_a_terminal_ends_with_ctrl_c(backend: Backend) -> None:
    target = f"http://{backend.served.report['metrics']}/metrics"
    terminal, own = os.openpty()
    termios.tcsetwinsize(own, (60, 160))
    before = termios.tcgetattr(own)
    # The terminal sends the signal of Ctrl-C to those that it controls; shells let background jobs ignore it.
    process = subprocess.Popen(
        ["setsid", "--ctty", "env", "--default-signal=INT", *TIDAL, "top", target, "--interval", "0.2"],
        stdin=own,
        stdout=own,
        stderr=own,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    shown = b""
    try:
        while shown.count(b"requests/s") < 4:  # three whole tables, two intervals apart
            shown += read_terminal(terminal)
        os.write(terminal, b"\x03")
        while b"\x1b[?1049l" not in shown:
            shown += read_terminal(terminal)
        assert process.wait(30) == 0
        while select.select([terminal], [], [], 0)[0]:
            shown += read_terminal(terminal)
        assert termios.tcgetattr(own) == before
    finally:
        process.kill()
        process.wait()
        os.close(own)
        os.close(terminal)
    first, _, view = shown.partition(b"\x1b[?1049h")
    view, _, last = view.partition(b"\x1b[?1049l")
    assert view.count(b"intents_cascade") >= 3
    assert b"\x1b[?25l" in first + view  # the cursor is hidden
    assert b"\x1b[?25h" in view + last
    assert b"Traceback" not in shown


def test_a_refusal_says_what_to_do(locked: Locked) -> None:
    answer = CliRunner().invoke(build_app(), ["top", locked[0].url, "--once"], env={"TIDAL_API_KEY": ""})
    assert answer.exit_code == 1
    assert "answered 401" in answer.stderr
    assert "TIDAL_API_KEY" in answer.stderr
