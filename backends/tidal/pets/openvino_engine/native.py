"""The library with the graph's operations and the tasks' memory: where it lies, and its C interface."""

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
        (_POINTER, _COUNT, _COUNT, _COUNT, _POINTER, _POINTER, _POINTER, _POINTER, ctypes.c_int32),
    ),
    "tidal_task_norm": (ctypes.c_bool, (_POINTER, _COUNT, _COUNT, _POINTER, _POINTER)),
    "tidal_batch_begin": (ctypes.c_int32, (_COUNT, _POINTER, _POINTER)),
    "tidal_batch_end": (None, (ctypes.c_int32,)),
    "tidal_bytes_in_use": (ctypes.c_int64, ()),
    "tidal_kernels": (ctypes.c_char_p, ()),
    "tidal_choose_kernels": (ctypes.c_bool, (ctypes.c_char_p,)),
}


def source_folder() -> Path:
    """Folder of the library's sources, beside this package or installed with it.

    Raises:
        NotFound: the installation lacks them.
    """
    return compiling.source_folder("pets/native", "api.cpp")


def library_path() -> Path:
    """Where the library for these sources and this OpenVINO lies, or will lie once it is built."""
    folder = source_folder()
    digest = compiling.sources_digest(folder, compiling.shared_headers(), against=version("openvino"))
    return folder / "build" / f"libtidal_pets-{digest}.so"


@cache
def library() -> ctypes.CDLL:
    """The loaded library.

    Raises:
        NotFound: it was not built for these sources; says how.
        Unsupported: it cannot be loaded here.
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
    """OpenVINO with the library's operations."""
    library()
    found = ov.Core()
    found.add_extension(str(library_path()))
    return found


def raise_on_failure(done: object) -> None:
    """Raise what the library reports where a call returned nothing.

    Raises:
        Internal: with the library's reason.
    """
    if not done:
        raise Internal(f"the pets library failed: {library().tidal_error().decode()}")


def choose_kernels(level: str) -> None:
    """Compute with one level of vector instructions from now on: avx512, avx2, plain, or auto, the best.

    Raises:
        InvalidArgument: there is no such level, or this processor lacks it.
    """
    if not library().tidal_choose_kernels(level.encode()):
        raise InvalidArgument(f"kernels '{level}' do not run here; accepted: auto, plain, and what the processor has")


def kernel_level() -> str:
    """The level of vector instructions that is computed with."""
    found: bytes = library().tidal_kernels()
    return found.decode()


def bytes_in_use() -> int:
    """Memory that all loaded tasks take in this process; a removed task counts until its last batch ends."""
    return int(library().tidal_bytes_in_use())
