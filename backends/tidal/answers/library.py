"""The compiled core: where it is, and its functions."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Collection, Mapping
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from tidal.compiling import source_folder, sources_digest
from tidal.errors import NotFound

BUILD_COMMAND = "python -m tidal.answers.build"
NAME = "tidal_answers"
Array = npt.NDArray[Any]


def sources() -> Path:
    """Return the folder of the sources, beside this package or installed with it.

    Raises:
        NotFound: The sources are not installed.
    """
    return source_folder("answers", "answers.cpp")


def library_path() -> Path:
    """Return the path of the module built from the present sources for this Python, whether or not it exists.

    Raises:
        NotFound: The sources are not installed.
    """
    python = sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag
    return sources() / "build" / f"{NAME}-{python}-{sources_digest(sources())}.so"


@cache
def library() -> ModuleType | None:
    """Load the module; None if it is not built or cannot be loaded."""
    try:
        loader = ExtensionFileLoader(NAME, str(library_path()))
        spec = spec_from_loader(NAME, loader)
        assert spec is not None
        module = module_from_spec(spec)
        loader.exec_module(module)
    except (ImportError, NotFound):
        return None
    return module


def class_scores(logits: Array, labels: Array) -> tuple[Array, Array] | None:
    """Return the probabilities, FP32 [rows, classes], and the most likely label of each row, BYTES [rows, 1].

    Args:
        logits: FP32 [rows, classes].
        labels: Labels of the classes as `bytes`, of shape [classes].

    Returns:
        Both; None without the library, or for logits with NaN, of another type or not contiguous.
    """
    loaded = library()
    if loaded is None:
        return None
    probabilities, best = np.empty(logits.shape, np.float32), np.empty((len(logits), 1), object)
    return (probabilities, best) if loaded.class_scores(logits, probabilities, best, labels) else None


def tensors(
    outputs: Mapping[str, Array],
    wanted: Collection[str],
    types: Mapping[str, np.dtype[Any]],
    rows: int | None,
    create: Callable[[str, Array], Any],
    shared: dict[Any, Any] | None,
) -> list[Any] | None:
    """Return the tensors of an answer.

    Args:
        outputs: Arrays by output name.
        wanted: Names of the outputs to answer with.
        types: Declared types of the outputs.
        rows: Number of rows that each must have; None: any.
        create: Creates a tensor with a name and the values of a contiguous array.
        shared: Tensors of one label or integer by name, number of axes and value, to use and to add to; None: each
            answer has tensors of its own.

    Returns:
        The tensors; None without the library, or if an output is missing, has another type or number of rows, or is not
        contiguous.
    """
    loaded = library()
    if loaded is None or not isinstance(outputs, dict):
        return None
    found: list[Any] | None = loaded.tensors(outputs, wanted, types, -1 if rows is None else rows, create, shared)
    return found


def texts(columns: list[Array], max_bytes: int) -> list[str] | None:
    """Return the texts of several requests in order.

    Args:
        columns: BYTES [rows, 1] of each request.
        max_bytes: Maximum number of bytes of all texts together.

    Returns:
        The texts; None without the library, or if they are longer, or one is blank or not valid UTF-8.
    """
    loaded = library()
    if loaded is None:
        return None
    found: list[str] | None = loaded.texts(columns, max_bytes)
    return found
