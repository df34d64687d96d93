"""A type stub of TensorRT, made from its real Python bindings where TensorRT itself is not installed.

The bindings link against three libraries of which they call nine functions while they are imported. Libraries with
functions of these names that return nothing let them be imported, and no more: whatever has to compute fails.
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
    """Write `tensorrt.pyi` into `folder`; returns it."""
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
    """The stub as Python that parses: no parameter is named `in`, and none without a default follows one with."""
    text = re.sub(r"\bin: ", "in_: ", text)
    text = re.sub(r"(def add_scale_nd\(.*channel_axis: int)\)", r"\1 = ...)", text)
    ast.parse(text)
    return text
