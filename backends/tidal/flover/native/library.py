"""The library of kernels: where it lies, and its C interface."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tidal.compiling import shared_headers, source_folder, sources_digest
from tidal.errors import InvalidArgument, NotFound

if TYPE_CHECKING:
    import torch

BUILD_COMMAND = "python -m tidal.flover.native.build"

_POINTER = ctypes.c_void_p
_INT = ctypes.c_int32
_LONG = ctypes.c_int64
# Result and arguments of every function, as native/api.cpp declares them.
_FUNCTIONS: dict[str, tuple[object, tuple[object, ...]]] = {
    "tidal_kernels": (ctypes.c_char_p, ()),
    "tidal_choose_kernels": (ctypes.c_bool, (ctypes.c_char_p,)),
    "tidal_packed_size": (_LONG, (ctypes.c_bool, _INT, _INT)),
    "tidal_pack": (None, (ctypes.c_bool, _INT, _INT, _POINTER, _POINTER)),
    "tidal_large_pages": (None, (_POINTER, ctypes.c_size_t)),
    "tidal_linear": (
        None,
        (ctypes.c_bool, _INT, _INT, _INT, _INT, _POINTER, _POINTER, _POINTER, _POINTER, _INT, _POINTER),
    ),
    "tidal_low_rank": (None, (*(_INT, _INT, _INT, _INT), *(_POINTER,) * 7)),
    "tidal_pass": (
        None,
        (
            *(_INT, _INT, _POINTER, _INT, _POINTER, _POINTER, _POINTER),
            *(_POINTER, _POINTER, _POINTER, _INT),
        ),
    ),
    "tidal_attention": (
        None,
        (
            *(ctypes.c_bool, _INT, _INT, _INT, _INT, _INT, _LONG),
            *(_POINTER, _POINTER, _POINTER, _POINTER, _POINTER),
        ),
    ),
}


def sources() -> Path:
    """Folder of the library's sources, beside this package or installed with it.

    Raises:
        NotFound: the installation lacks them.
    """
    return source_folder("flover/native", "api.cpp")


def library_path() -> Path:
    """Where the library for these sources lies, or will lie once it is built.

    Raises:
        NotFound: the installation lacks the sources.
    """
    digest = sources_digest(sources(), shared_headers())
    return sources() / "build" / f"libtidal_flover-{digest}.so"


@cache
def library() -> ctypes.CDLL | None:
    """The loaded library; None where it was not built, or cannot be loaded."""
    try:
        loaded = ctypes.CDLL(str(library_path()))
    except (OSError, NotFound):
        return None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def usable(device: torch.device) -> ctypes.CDLL | None:
    """The library, where tensors of this device may go through it."""
    return library() if device.type == "cpu" else None


def large_pages(tensor: torch.Tensor) -> torch.Tensor:
    """Ask for large pages under a tensor that was not written to yet: fewer addresses are looked up."""
    if (loaded := usable(tensor.device)) is not None:
        loaded.tidal_large_pages(tensor.data_ptr(), tensor.nbytes)
    return tensor


def kernel_level() -> str | None:
    """The level of vector instructions that is computed with; None without the library."""
    loaded = library()
    return None if loaded is None else bytes(loaded.tidal_kernels()).decode()


def choose_kernels(level: str) -> None:
    """Compute with one level of vector instructions from now on: avx512bf16, avx512, avx2, plain, or auto, the best.

    Raises:
        InvalidArgument: there is no such level, or this processor lacks it, or the library is not built.
    """
    loaded = library()
    if loaded is None or not loaded.tidal_choose_kernels(level.encode()):
        raise InvalidArgument(f"kernels '{level}' do not run here; accepted: auto, plain, and what the processor has")
