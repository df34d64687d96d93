"""The blocks of README and docs run as printed, without a network, over the models of README's sections.

The samples are smaller than those of `make samples`, builds measure and search less, and a command that several pages
show runs once, unless it changes what is served. Commands of Tidal alone and Python programs run in this process, which
has imported the libraries already; commands with pipes run in a shell. What README shows as the output of a block is
compared with that of the block's last command or program, but for figures and which label is chosen.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from demo import samples
from testing.building import short_timing
from testing.serving import Served, environment_in, serving, tidal_in_process
from tests.docs.blocks import Block, blocks_of
from tests.docs.page_models import LOG, in_a_test, prepare, quick_spec
from tests.docs.pages import PAGES, README, ROOT
from tests.tabi.builders.conftest import short_search

#: Model of each section of README that builds one.
SECTIONS = {
    "Classify text": "sentiment",
    "Embed texts": "minilm",
    "Answer easy queries with a small model": "reviews",
    "Serve many fine-tuned tasks": "shared",
    "Classify images under deadlines": "vit",
    "Generate text": "writer",
}
#: Pages with blocks to run; those on extending Tidal have tests of their own.
_RUN = [
    page
    for page in PAGES
    if page.name != "extending.md"
    and any(block.language in ("sh", "python") and not block.mark for block in blocks_of(page))
]
#: Commands that change what others find.
_CHANGES = r"tidal (tasks|models)\b"
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Followed:
    """A folder in which README's specs were written and its models built, and a server over them."""

    folder: Path
    environment: dict[str, str]
    served: Served
    done: dict[str, str]
    """Output of each command that has run."""

    def run(self, command: str) -> str:
        """Output of a shell command, which must succeed; it runs unless it has and does not depend on those since."""
        if command not in self.done or re.match(_CHANGES, command):
            self.done[command] = run_command(self._here(command), self.folder, self.environment)
        return self.done[command]

    def python(self, code: str) -> str:
        """Output of a Python program, which must succeed."""
        with chdir(self.folder), redirect_stdout(io.StringIO()) as output:
            exec(compile(self._here(code), "block", "exec"), {"__name__": "__main__"})
        return output.getvalue()

    def _here(self, text: str) -> str:
        """The text for this folder, with the ports of this server instead of the default ones."""
        text = in_a_test(text)
        for port, name in (("8000", "http"), ("8001", "grpc"), ("8002", "metrics"), ("9000", "gateway")):
            address = str(self.served.report[name]).removeprefix("http://")
            text = re.sub(rf"(localhost|127\.0\.0\.1):{port}\b", address, text)
        return text


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Followed]:
    folder = tmp_path_factory.mktemp("readme")
    environment = {**environment_in(folder / "environment"), **_OFFLINE}
    (folder / "demo").symlink_to(ROOT / "demo")
    scripts = Path(sys.executable).parent
    environment["PATH"] = f"{scripts}{os.pathsep}{environment['PATH']}"
    assert samples.main([str(folder / "samples"), "--small"]) == 0
    for block in blocks_in(*SECTIONS):
        if block.language == "yaml":
            (name,) = re.findall(r"^# (\S+\.yaml)$", block.text, re.MULTILINE)
            (folder / name).write_text(yaml.safe_dump(quick_spec(block.text)))
    done: dict[str, str] = {}
    for block in blocks_in(*SECTIONS):
        for command in block.commands() if block.language == "sh" else ():
            if not needs_a_server(command):
                done[command] = run_command(command, folder, environment)
    runtime = Path(environment["XDG_RUNTIME_DIR"])
    log = ("--access-log", str(folder / LOG))
    with serving(folder / "model_repository", runtime, "--gateway-port", "0", *log) as served:
        yield Followed(folder, environment, served, done)


def blocks_in(*sections: str) -> list[Block]:
    return [block for block in blocks_of(README) if block.section in sections]


def needs_a_server(command: str) -> bool:
    return re.match(r"(tidal (infer|embed|generate|serve)|curl)\b", command) is not None


def run_command(command: str, folder: Path, environment: dict[str, str]) -> str:
    """Output of a shell command, which must succeed; for one that asks a server, too."""
    words = shlex.split(command)
    if words[0] == "tidal" and not {"|", "<", ">", "&&"} & set(words) and "\n" not in command:
        with chdir(folder), short_timing(), short_search():
            done = tidal_in_process(*words[1:], environment=environment)
    else:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-ec", command],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False,
        )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert not (words[0] == "curl" and done.stdout.startswith('{"error"')), f"{command}\n{done.stdout}"
    return done.stdout + done.stderr


def test_every_section_builds_and_serves_its_model() -> None:
    for section, model in SECTIONS.items():
        commands = [command for block in blocks_in(section) for command in block.commands()]
        assert any(command.startswith("tidal build ") for command in commands), section
        assert any(command.startswith("tidal serve") for command in commands), section
        assert any(f" {model} " in f"{command} " for command in commands), section


@pytest.mark.server
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", _RUN, ids=lambda page: page.name)
def test_a_page_runs_as_printed(followed: Followed, page: Path) -> None:
    """README's builds ran before the server started."""
    prepare(page.name, followed.folder, followed.run)
    ran, blocks = 0, blocks_of(page)
    for block, below in itertools.zip_longest(blocks, blocks[1:]):
        if block.mark or block.language not in ("sh", "python"):
            continue
        if block.language == "python":
            output = followed.python(block.text)
            assert output.strip()
        for command in block.scripts() if block.language == "sh" else ():
            if command.startswith(("tidal serve", "tidal tasks add", "tidal tasks train")) and page == README:
                continue  # done before the server started
            output = followed.run(command)
        ran += 1
        if page == README and below is not None and below.language == "text":
            check_output(below.text, output)
    assert ran


def check_output(shown: str, output: str) -> None:
    """Every line that a page shows is printed, in this order; `...` stands for any text, and figures may differ.

    Lines without a figure or a key are generated texts, which depend on the processor's rounding.
    """
    printed = iter(comparable(output).splitlines())
    for line in comparable(shown).splitlines():
        if "#" not in line and '"' not in line:
            continue
        pattern = ".*".join(re.escape(part) for part in line.split("..."))
        assert any(re.fullmatch(pattern, each) for each in printed), f"{line}\n{output}"


def comparable(text: str) -> str:
    """The text without figures and chosen labels: the small samples are not trained enough to choose the right ones."""
    text = re.sub(r'"label": "(NEGATIVE|POSITIVE)"', '"label": "LABEL"', text)
    return re.sub(r"(?<!\w)-?\d+(\.\d+)?(e-?\d+)?", "#", text)
