"""The README's sections on models of one's own run as printed: without a network, from `make samples`."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from testing.serving import Served, environment_in, serving
from tests.docs.blocks import Block, blocks_of

ROOT = Path(__file__).resolve().parents[2]
README = blocks_of((ROOT / "README.md").read_text())
SECTIONS = {
    "A model of your own": "sentiment",
    "Two models, the small one first": "reviews",
    "Many tasks, one encoder": "shared",
    "Images, with more or fewer tokens": "vit",
    "Text generation": "writer",
}
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Followed:
    """A folder in which every section's specs were written and its models built, and a server over them."""

    folder: Path
    environment: dict[str, str]
    served: Served

    def run(self, command: str) -> str:
        """What a shell command prints; it must succeed."""
        return shell(self._here(command), self.folder, self.environment)

    def python(self, code: str) -> str:
        """What a Python program prints; it must succeed."""
        return shell(shlex.join([sys.executable, "-c", self._here(code)]), self.folder, self.environment)

    def _here(self, text: str) -> str:
        """The README's ports are the defaults; a test's server has free ones."""
        for port, name in (("8000", "http"), ("8001", "grpc"), ("8002", "metrics")):
            text = re.sub(rf"(localhost|127\.0\.0\.1):{port}\b", self.served.report[name], text)
        return text


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Followed]:
    folder = tmp_path_factory.mktemp("readme")
    environment = {**environment_in(folder / "environment"), **_OFFLINE}
    (folder / "demo").symlink_to(ROOT / "demo")
    scripts = Path(sys.executable).parent
    environment["PATH"] = f"{scripts}{os.pathsep}{environment['PATH']}"
    shell(f"{sys.executable} -m demo.samples {folder / 'samples'}", ROOT, environment)
    for block in blocks_in(*SECTIONS):
        if block.language == "yaml":
            (name,) = re.findall(r"^# (\S+\.yaml)$", block.text, re.MULTILINE)
            (folder / name).write_text(block.text)
    (folder / "model_repository").mkdir()
    for block in blocks_in(*SECTIONS):
        for command in block.commands() if block.language == "sh" else ():
            if not is_asked_of_a_server(command):
                shell(command, folder, environment)
    runtime = Path(environment["XDG_RUNTIME_DIR"])
    with serving(folder / "model_repository", runtime) as served:
        yield Followed(folder, environment, served)


def blocks_in(*sections: str) -> list[Block]:
    return [block for block in README if block.section in sections]


def is_asked_of_a_server(command: str) -> bool:
    return re.match(r"(tidal (infer|generate|serve)|curl)\b", command) is not None


def shell(command: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_every_section_is_there() -> None:
    for section, model in SECTIONS.items():
        commands = [command for block in blocks_in(section) for command in block.commands()]
        assert any(command.startswith("tidal build ") for command in commands), section
        assert any(command.startswith("tidal serve") for command in commands), section
        assert any(f" {model} " in f"{command} " for command in commands), section


@pytest.mark.server
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_runs_as_printed(followed: Followed, section: str) -> None:
    asked = 0
    for block in blocks_in(section):
        if block.language == "python":
            assert followed.python(block.text).strip()
            asked += 1
        for command in block.commands() if block.language == "sh" else ():
            if is_asked_of_a_server(command) and not command.startswith("tidal serve"):
                assert followed.run(command).strip()
                asked += 1
    assert asked
