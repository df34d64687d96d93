"""Marks: every test that is skipped or run again has its cause beside it, and files left out are not imported."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_ignore_collect

TESTS = Path(__file__).parents[1]
# Marks and functions whose cause is an argument; those of `flaky` and `xfail` are a comment on the line above.
_WITH_REASON = ("skip", "skipif", "importorskip")
_WITH_COMMENT = ("flaky", "xfail")


def without_cause(source: str) -> list[str]:
    """Return the lines of calls of pytest that skip, excuse or repeat a test and have no cause beside them."""
    found: list[str] = []
    if not any(kind in source for kind in (*_WITH_REASON, *_WITH_COMMENT)):
        return found
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not ast.unparse(node.func).startswith("pytest."):
            continue
        kind = ast.unparse(node.func).rpartition(".")[2]
        named = any(each.arg == "reason" for each in node.keywords) or (kind == "skip" and bool(node.args))
        commented = lines[node.lineno - 2].lstrip().startswith("#")
        if (kind in _WITH_REASON and not named) or (kind in _WITH_COMMENT and not commented):
            found.append(lines[node.lineno - 1].strip())
    return found


def test_every_mark_has_its_cause_beside_it() -> None:
    files = [path for path in sorted(TESTS.rglob("*.py")) if path != Path(__file__)]
    assert {str(path.relative_to(TESTS)): found for path in files if (found := without_cause(path.read_text()))} == {}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("@pytest.mark.flaky(reruns=2)\ndef test(): ...", 1),
        ("# the process aborts: 6 of 67 kills\n@pytest.mark.flaky(reruns=2)\ndef test(): ...", 0),
        ("x = 1\nx = pytest.mark.skipif(True)", 1),
        ("x = 1\nx = pytest.mark.skipif(True, reason='needs g++')", 0),
        ("pytest.importorskip('a')", 1),
        ("pytest.skip()", 1),
        ("pytest.skip('needs g++')", 0),
    ],
)
def test_a_mark_without_a_cause_is_found(source: str, count: int) -> None:
    assert len(without_cause(source)) == count


@pytest.mark.parametrize(
    ("marks", "selection", "ignored"),
    [
        ("pytestmark = pytest.mark.server", "not server and not slow", True),
        ("pytestmark = [\n    pytest.mark.gpu,\n    pytest.mark.slow,\n]", "not server and not slow", True),
        ("@pytest.mark.slow\ndef test(): ...", "not server and not slow", False),
        ("pytestmark = pytest.mark.gpu", "not server and not slow", False),
        ("pytestmark = pytest.mark.server", "server", False),
        ("pytestmark = pytest.mark.server", "gpu or not server", False),
        ("pytestmark = pytest.mark.server", "", False),
    ],
)  # fmt: skip
def test_only_files_without_a_selected_test_are_ignored(
    tmp_path: Path, marks: str, selection: str, ignored: bool
) -> None:
    file = tmp_path / "test_x.py"
    file.write_text(f"import pytest\n\n{marks}\n")
    config: Any = SimpleNamespace(option=SimpleNamespace(markexpr=selection))
    assert bool(pytest_ignore_collect(file, config)) == ignored
