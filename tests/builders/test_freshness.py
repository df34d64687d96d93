"""A model is stale when a module that its build imports changes, and only then."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidal_builders.fingerprint import build_code, hash_code
from tidal_builders.imports import PACKAGES, import_closure
from tidal_builders.kinds import KINDS

Packages = tuple[tuple[str, Path], ...]

# A module that each kind's build imports, far from its root, and one of another kind.
IMPORTED = {
    "arlo": ("tidal_builders/texts.py", "tidal_builders/pets/graph.py"),
    "tabi": ("tidal/text/words.py", "tidal/otas/manifest.py"),
    "pets": ("tidal/pets/terms.py", "tidal_builders/arlo/choices.py"),
    "otas": ("tidal_builders/timing.py", "tidal/flover/manifest.py"),
    "flover": ("tidal_builders/samples.py", "tidal_builders/arlo/stages.py"),
}
# Modules that no build depends on: help texts, servers, and the simulator.
UNUSED = (
    "tidal_builders/commands/build.py",
    "tidal_builders/commands/tasks.py",
    "tidal/commands/models.py",
    "tidal/server/launch.py",
    "tidal/simulator/__init__.py",
)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    """Copies of Tidal's packages."""
    folder = tmp_path_factory.mktemp("copied")
    for name, path in PACKAGES:
        shutil.copytree(path, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tuple((name, folder / name) for name, _ in PACKAGES)


def code(kind: str, packages: Packages) -> str:
    # Modules are cached between calls, which is right as long as edits change no imports.
    return hash_code(build_code((KINDS[kind].build.partition(":")[0],), packages=packages))


@contextmanager
def edited(packages: Packages, *files: str) -> Iterator[None]:
    """Append a comment to files, named from the packages' folder, for the duration of a block."""
    before = {path: path.read_bytes() for path in (packages[0][1].parent / file for file in files)}
    try:
        for path, content in before.items():
            path.write_bytes(content + b"\n# an edit\n")
        yield
    finally:
        for path, content in before.items():
            path.write_bytes(content)


@pytest.mark.parametrize("kind", KINDS)
def test_edits_of_imported_modules_alone_make_a_model_stale(copied: Packages, kind: str) -> None:
    before = code(kind, copied)
    for file in (IMPORTED[kind][0], f"tidal_builders/{kind}/build.py", "tidal/manifest.py"):
        with edited(copied, file):
            assert code(kind, copied) != before, file
    with edited(copied, IMPORTED[kind][1], *UNUSED):
        assert code(kind, copied) == before


@pytest.mark.parametrize("kind", [name for name in KINDS if name != "tabi"])
def test_no_build_imports_the_build_of_another_kind(kind: str) -> None:
    others = [f"tidal_builders.{name}" for name in KINDS if name != kind]
    modules = build_code((KINDS[kind].build.partition(":")[0],))
    assert not [module for module in modules if module in others]


def test_the_closure_contains_the_imports_that_run(tmp_path: Path) -> None:
    modules = {
        "__init__": "",
        "root": "from typing import TYPE_CHECKING\nfrom top import direct\nif TYPE_CHECKING:\n    import top.typed\n",
        "direct": "def f():\n    from top.inner.lazy import g\n",
        "inner/__init__": "from . import beside",
        "inner/lazy": "from .. import above\nimport top.command.line\nimport numpy",
        "inner/beside": "",
        "above": "",
        "typed": "",
        "command/__init__": "",
        "command/line": "",
    }
    for name, text in modules.items():
        path = tmp_path / "top" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = import_closure(["top.root"], leave_out=["top.command"], packages={"top": tmp_path / "top"})
    names = {"top", "top.root", "top.direct", "top.above", "top.inner", "top.inner.lazy", "top.inner.beside"}
    assert set(found) == names
    assert found["top.inner"] == tmp_path / "top/inner/__init__.py"
