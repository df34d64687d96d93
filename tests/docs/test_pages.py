"""The documentation agrees with the code: generated pages, links, commands, specs, and how every block is tested."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml

from buildtools.docs_site import PAGES as OUTSIDE
from buildtools.docs_site import RELIABILITY, site_path
from buildtools.reference.__main__ import stale_pages
from tests.deploy.project import accepts
from tests.docs.blocks import Block
from tests.docs.pages import PAGES, README, REASONS, ROOT, blocks
from tidal_builders.specs import parse_spec

_LINK = re.compile(r"(?:\]\(|\b(?:src|srcset)=\")([^)\s\"]+)[)\"]")
#: Lines of how-to pages, as of README, that show what `tidal` prints or that a shell does around it.
_TIDAL = re.compile(r"(?:^|[|] |&& |\|\| |\) )(tidal [^|<>]*)")


def test_generated_pages_are_current() -> None:
    stale = [page.name for page in stale_pages()]
    assert stale == [], "run `python -m buildtools.reference`"


def test_brackets_of_accepted_values_are_paired() -> None:
    rows = [
        line.split(" | ") for line in (ROOT / "docs/reference/cli.md").read_text().splitlines() if line[:3] == "| `"
    ]
    accepted = {name.strip("|` "): value for name, value, *_ in rows}
    assert [value for value in accepted.values() if value.count("[") != value.count("]")] == []
    assert accepted["--server`, `-s"] == "[HOST:]PORT"  # brackets around a part of it
    assert accepted["MODEL..."] == "MODEL; repeatable"  # `[MODEL]...`: brackets around the whole
    assert accepted["--labels"] == "A,B,..."  # one value: its dots are no mark of repetition


def test_the_readme_fits_and_begins_with_what_tidal_is() -> None:
    lines = README.read_text().splitlines()
    assert len(lines) < 250
    assert lines[2].startswith("Tidal serves transformer models")


def test_prose_of_the_readme_is_wrapped() -> None:
    prose = re.sub(r"^```.*?^```", "", README.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert [line for line in prose.splitlines() if len(line) > 140 and not line.lstrip().startswith(("|", "<"))] == []


def test_the_readme_counts_the_promises_that_the_committed_run_has() -> None:
    lines = (ROOT / "benchmarks/results/reliability.md").read_text().splitlines()
    begin = lines.index(next(line for line in lines if line.startswith("| ---"))) + 1
    rows = list(itertools.takewhile(lambda line: line.startswith("|"), lines[begin:]))
    held = sum("| yes |" in row for row in rows)
    text = " ".join(README.read_text().split())
    assert f"Of the {len(rows)} promises of" in text
    assert f"{held} held:" in text


@pytest.mark.parametrize("page", [*PAGES, ROOT / "docs/reference/cli.md"], ids=lambda page: page.name)
def test_a_page_begins_with_a_title_and_its_purpose(page: Path) -> None:
    title, *rest = [line for line in page.read_text().splitlines() if line and not line.startswith("<!--")]
    assert title.startswith("# ")
    assert not rest[0].startswith(("#", "|", "```", "- ")), rest[0]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "docs/reference/cli.md"], ids=lambda page: page.name)
def test_links_have_targets(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in _LINK.findall(prose):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), target


def anchors(page: Path) -> set[str]:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_navigation() -> None:
    def listed(entry: object) -> set[str]:
        if isinstance(entry, str):
            return {entry}
        values = entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ()
        return {path for each in values for path in listed(each)}

    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    pages = {str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")} | set(OUTSIDE.values())
    pages |= set(RELIABILITY)
    assert listed(yaml.safe_load(navigation)) == {site_path(page) for page in pages}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_site_is_built_without_a_broken_link(tmp_path: Path) -> None:
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path)))
    assert "Tidal serves transformer models" in (tmp_path / "index.html").read_text()
    assert (tmp_path / "search" / "search_index.json").is_file()


@pytest.mark.parametrize("block", [block for block in blocks() if block.mark], ids=str)
def test_a_block_that_is_not_run_has_a_reason(block: Block) -> None:
    kind, _, reason = block.mark.partition(": ")
    if kind == "not run":
        assert reason in REASONS
    else:
        assert (ROOT / block.mark.removeprefix("run by ")).is_file()
    assert block.language in ("sh", "python")


def test_every_accepted_reason_is_used() -> None:
    assert {block.mark.partition(": ")[2] for block in blocks() if block.mark.startswith("not run")} == REASONS


@pytest.mark.parametrize("block", [block for block in blocks() if block.language == "sh"], ids=str)
def test_commands_of_tidal_are_accepted(block: Block) -> None:
    """Whether it is run or not: the command exists, and so do its options and its arguments' values."""
    for command in block.commands():
        for call in _TIDAL.findall(command):
            words = shlex.split(call.rstrip(" ;"), comments=True)[1:]
            try:
                accepts(words)
            except typer.Exit as asked_for_help:
                assert asked_for_help.exit_code == 0
            except typer.BadParameter as problem:
                assert "does not exist" in str(problem)  # a file of `make samples`


@pytest.mark.parametrize("block", [block for block in blocks() if block.language == "python"], ids=str)
def test_programs_are_python(block: Block) -> None:
    compile(block.text, str(block), "exec")


# That of a cluster is read by tests/cluster/test_config_file.py.
_SPECS = [block for block in blocks() if block.language == "yaml" and not block.text.startswith("# cluster.yaml")]


@pytest.mark.parametrize("block", _SPECS, ids=str)
def test_specs_are_accepted(block: Block) -> None:
    assert parse_spec(yaml.safe_load(block.text), str(block)).kind
