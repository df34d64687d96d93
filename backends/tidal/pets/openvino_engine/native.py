"""The library of graph operations and of tasks' memory: its path and its C interface."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.metadata import version
from pathlib import Path

import openvino as ov

from tidal import compiling
from tidal.errors import Internal, InvalidArgument, NotFound, Unsupported

BUILD_COMMAND = "python -m tidal.pets.openvino_engine.build"

_POINTER = ctypes.c_void_p
_COUNT = ctypes.c_uint32
# Result and arguments of every function, as native/api.cpp declares them.
_FUNCTIONS: dict[str, tuple[object, tuple[object, ...]]] = {
    "tidal_error": (ctypes.c_char_p, ()),
    "tidal_task_create": (_POINTER, (_COUNT, _COUNT)),
    "tidal_task_release": (None, (_POINTER,)),
    "tidal_task_bytes": (ctypes.c_int64, (_POINTER,)),
    "tidal_task_bias": (ctypes.c_bool, (_POINTER, _COUNT, _COUNT, _POINTER)),
    "tidal_task_sparse": (ctypes.c_bool, (_POINTER, _COUNT, _COUNT, _POINTER, _POINTER, _POINTER)),
    "tidal_task_low_rank": (
        ctypes.c_bool,
        (_POINTER, _COUNT, _COUNT, _COUNT, _COUNT, _POINTER, _POINTER, ctypes.c_float),
    ),
    "tidal_task_bottleneck": (
        ctypes.c_bool,
        (_POINTER, _COUNT, _COUNT, _COUNT, _POINTER, _POINTER, _POINTER, _POINTER, ctypes.c_int32, ctypes.c_bool),
    ),
    "tidal_task_norm": (ctypes.c_bool, (_POINTER, _COUNT, _COUNT, _POINTER, _POINTER)),
    "tidal_batch_begin": (ctypes.c_int32, (_COUNT, _POINTER, _POINTER)),
    "tidal_batch_end": (None, (ctypes.c_int32,)),
    "tidal_bytes_in_use": (ctypes.c_int64, ()),
    "tidal_kernels": (ctypes.c_char_p, ()),
    "tidal_choose_kernels": (ctypes.c_bool, (ctypes.c_char_p,)),
}


def source_folder() -> Path:
    """Folder of the library's sources, in the checkout or in the installation.

    Raises:
        NotFound: The installation lacks them.
    """
    return compiling.source_folder("pets/native", "api.cpp")


def library_path() -> Path:
    """Path of the library for the present sources and OpenVINO version, whether it is built or not."""
    folder = source_folder()
    digest = compiling.sources_digest(folder, compiling.shared_headers(), against=version("openvino"))
    return folder / "build" / f"libtidal_pets-{digest}.so"


@cache
def library() -> ctypes.CDLL:
    """Load the library.

    Raises:
        NotFound: The library is not built for the present sources; the message has the command.
        Unsupported: The library cannot be loaded on this machine.
    """
    path = library_path()
    if not path.is_file():
        raise NotFound(f"{path.name} is not built: run '{BUILD_COMMAND}' (it needs g++), or 'make install'")
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise Unsupported(f"{path} cannot be loaded ({error}): run '{BUILD_COMMAND} --force'") from None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


@cache
def core() -> ov.Core:
    """OpenVINO's core with the library's operations."""
    library()
    found = ov.Core()
    found.add_extension(str(library_path()))
    return found


def raise_on_failure(done: object) -> None:
    """Raise the error that the library reports if a call returned nothing.

    Args:
        done: Return value of the call; false or null on failure.

    Raises:
        Internal: The call failed; the message has the library's reason.
    """
    if not done:
        raise Internal(f"the pets library failed: {library().tidal_error().decode()}")


def choose_kernels(level: str) -> None:
    """Compute with one level of vector instructions from now on.

    Args:
        level: avx512, avx2, plain, or auto for the best level that this processor runs.

    Raises:
        InvalidArgument: The level is unknown, or this processor does not run it.
    """
    if not library().tidal_choose_kernels(level.encode()):
        raise InvalidArgument(f"kernels '{level}' do not run here; accepted: auto, plain, and what the processor has")


def kernel_level() -> str:
    """Level of vector instructions in use."""
    found: bytes = library().tidal_kernels()
    return found.decode()


def bytes_in_use() -> int:
    """Memory of all loaded tasks in this process, in bytes; a removed task counts until its last batch finishes."""
    return int(library().tidal_bytes_in_use())
