"""The native library: its path and its C interface."""

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
# Result and argument types of every function, as native/api.cpp declares them.
_FUNCTIONS: dict[str, tuple[object, tuple[object, ...]]] = {
    "tidal_kernels": (ctypes.c_char_p, ()),
    "tidal_choose_kernels": (ctypes.c_bool, (ctypes.c_char_p,)),
    "tidal_packed_bytes": (_LONG, (_POINTER,)),
    "tidal_pack": (None, (_POINTER, _INT, _POINTER, _POINTER)),
    "tidal_large_pages": (None, (_POINTER, ctypes.c_size_t)),
    "tidal_linear": (None, (_POINTER, _INT, _INT, _POINTER, _POINTER, _INT, _POINTER)),
    "tidal_low_rank": (None, (*(_INT, _INT, _INT, _INT), *(_POINTER,) * 7)),
    "tidal_pass": (
        None,
        (
            *(_INT, _INT, _POINTER, _INT, _POINTER, _POINTER, _POINTER),
            *(_POINTER, _POINTER, _POINTER, _INT),
        ),
    ),
    "tidal_attention": (None, (*(_POINTER, _INT, _INT), *(_POINTER,) * 4)),
}


def sources() -> Path:
    """Return the folder of the library's sources, beside this package or installed with it.

    Raises:
        NotFound: The sources are not installed.
    """
    return source_folder("flover/native", "api.cpp")


def library_path() -> Path:
    """Return the path of the library built from the present sources, whether or not it exists.

    Raises:
        NotFound: The sources are not installed.
    """
    digest = sources_digest(sources(), shared_headers())
    return sources() / "build" / f"libtidal_flover-{digest}.so"


@cache
def library() -> ctypes.CDLL | None:
    """Load the library; None if it is not built or cannot be loaded."""
    try:
        loaded = ctypes.CDLL(str(library_path()))
    except (OSError, NotFound):
        return None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def usable(device: torch.device) -> ctypes.CDLL | None:
    """Return the library if it supports tensors of this device."""
    return library() if device.type == "cpu" else None


def large_pages(tensor: torch.Tensor) -> torch.Tensor:
    """Request large memory pages for a tensor not yet written to, which saves address translation; returns it."""
    if (loaded := usable(tensor.device)) is not None:
        loaded.tidal_large_pages(tensor.data_ptr(), tensor.nbytes)
    return tensor


def kernel_level() -> str | None:
    """Return the level of vector instructions in use; None without the library."""
    loaded = library()
    return None if loaded is None else bytes(loaded.tidal_kernels()).decode()


def choose_kernels(level: str) -> None:
    """Select the level of vector instructions.

    Args:
        level: amx, avx512bf16, avx512vnni, avx512, avx2, plain, or auto, the best that the processor supports.

    Raises:
        InvalidArgument: The level is unknown or not supported by the processor, or the library is not built.
    """
    loaded = library()
    if loaded is None or not loaded.tidal_choose_kernels(level.encode()):
        raise InvalidArgument(
            f"kernels '{level}' are not available; accepted: auto, plain, and what the processor supports"
        )
