"""The TensorRT code is type-checked against TensorRT's real interface, also where TensorRT cannot be installed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tidal
from tests.engines.tensorrt_stub import make_stub

BACKENDS = Path(tidal.__path__[0]).parent
SOURCES = sorted((BACKENDS / "tidal" / "engines" / "tensorrt").glob("*.py"))

CONFIG = """\
[mypy]
strict = true
# An ignore comment is only needed where TensorRT is not installed.
warn_unused_ignores = false
follow_imports = silent
mypy_path = {path}
cache_dir = {cache}

[mypy-tensorrt]
ignore_errors = true
[mypy-cuda.*,openvino.*,tritonclient.*,torch.*,transformers.*]
ignore_missing_imports = true
follow_imports = skip
"""


# Each replaces a call of the code with one that TensorRT does not have: removed, misspelt, or with other arguments.
WRONG = {
    "a removed attribute": (
        "build.py",
        r"config\.clear_flag\(trt\.BuilderFlag\.TF32\)",
        "config.max_workspace_size = 1 << 30",
        '"IBuilderConfig" has no attribute "max_workspace_size"',
    ),
    "a misspelt method": (
        "build.py",
        r"parser\.parse_from_file",
        "parser.parse_from_flie",
        '"OnnxParser" has no attribute "parse_from_flie"',
    ),
    "a wrong argument": (
        "build.py",
        r"create_network\(.*\)",
        'create_network("strong")',
        'incompatible type "str"; expected "int"',
    ),
    "a removed method": (
        "runtime.py",
        r"execute_async_v3\(self\._stream\.handle\)",
        "execute_async_v2([], self._stream.handle)",
        '"IExecutionContext" has no attribute "execute_async_v2"',
    ),
    "arguments in the wrong order": (
        "runtime.py",
        r"get_tensor_profile_shape\(name, profile\)",
        "get_tensor_profile_shape(profile, name)",
        'incompatible type "int"; expected "str"',
    ),
}


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Mypy's errors with the stub as TensorRT: of the code, under "", and of each wrong call, by its name."""
    folder = tmp_path_factory.mktemp("stub")
    make_stub(folder)
    cache = BACKENDS.parent / ".mypy_cache" / "tensorrt"
    (folder / "mypy.ini").write_text(CONFIG.format(path=f"{folder}:{BACKENDS}", cache=cache))
    files: dict[str, Path] = {}
    for number, (name, (file, call, wrong, _)) in enumerate(WRONG.items()):
        (source,) = (path for path in SOURCES if path.name == file)
        text, changed = re.subn(call, lambda _, new=wrong: new, source.read_text())
        assert changed == 1, name
        files[name] = folder / f"wrong_{number}.py"
        files[name].write_text(text)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--config-file",
            str(folder / "mypy.ini"),
            *map(str, (*SOURCES, *files.values())),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines, done.stderr
    assert lines[-1].endswith(f"(checked {len(SOURCES) + len(files)} source files)"), done.stdout
    found = {name: [line for line in lines if path.name in line] for name, path in files.items()}
    return {**found, "": [line for line in lines[:-1] if not any(line in of for of in found.values())]}


@pytest.mark.slow
def test_the_code_matches_tensorrts_interface(errors: dict[str, list[str]]) -> None:
    assert {path.name for path in SOURCES} >= {"build.py", "runtime.py", "messages.py"}
    assert errors[""] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_calls_that_tensorrt_does_not_have_are_reported(errors: dict[str, list[str]], name: str) -> None:
    message = WRONG[name][3]
    assert any(message in line for line in errors[name]), errors[name]
