"""A type stub of TensorRT, generated from its real Python bindings where TensorRT itself is not installed.

The bindings link against three libraries and call nine of their functions during import. Libraries with functions of
these names that return null are enough to import the bindings, but not to compute with them.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

_LIBRARIES = ("libnvinfer.so.10", "libnvinfer_plugin.so.10", "libnvonnxparser.so.10")
_FUNCTIONS = (
    "createInferBuilder_INTERNAL",
    "createInferRefitter_INTERNAL",
    "createInferRuntime_INTERNAL",
    "createNvOnnxParserRefitter_INTERNAL",
    "createNvOnnxParser_INTERNAL",
    "getBuilderPluginRegistry",
    "getNvOnnxParserVersion",
    "getPluginRegistry",
    "initLibNvInferPlugins",
)


def make_stub(folder: Path) -> Path:
    """Write `tensorrt.pyi` into `folder` and return its path."""
    libraries = folder / "libraries"
    libraries.mkdir()
    source = libraries / "empty.cpp"
    source.write_text("".join(f'extern "C" void* {name}() {{ return nullptr; }}\n' for name in _FUNCTIONS))
    for library in _LIBRARIES:
        subprocess.run(["g++", "-shared", "-fPIC", "-o", str(libraries / library), str(source)], check=True)
    generator = [sys.executable, "-m", "pybind11_stubgen", "--ignore-all-errors", "-o", str(folder)]
    subprocess.run(
        [*generator, "tensorrt_bindings.tensorrt"],
        env={**os.environ, "LD_LIBRARY_PATH": str(libraries)},
        check=True,
        capture_output=True,
        timeout=120,
    )
    made = folder / "tensorrt_bindings" / "tensorrt.pyi"
    stub = folder / "tensorrt.pyi"
    stub.write_text(_repaired(made.read_text()))
    return stub


def _repaired(text: str) -> str:
    """Return the stub as valid Python: rename parameters named `in`, and add a default where one is missing."""
    text = re.sub(r"\bin: ", "in_: ", text)
    text = re.sub(r"(def add_scale_nd\(.*channel_axis: int)\)", r"\1 = ...)", text)
    ast.parse(text)
    return text
