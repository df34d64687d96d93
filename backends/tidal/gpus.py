"""Lists the GPUs that this process may use without initialising CUDA, which reads its environment only once."""

from __future__ import annotations

import ctypes
import os
from functools import cache

# Selects the GPUs of a process, by number or UUID, until CUDA is initialised in it.
VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
_UUID_BYTES = 96


@cache
def visible_gpus() -> tuple[str, ...]:
    """GPUs as `CUDA_VISIBLE_DEVICES` names them, or the UUIDs of all GPUs if it is not set; empty without a driver."""
    return gpus_named(os.environ.get(VISIBLE_VARIABLE))


def gpus_named(named: str | None) -> tuple[str, ...]:
    """GPUs that a value of `CUDA_VISIBLE_DEVICES` names; None: the UUIDs of all GPUs, empty without a driver."""
    if named is not None:
        return tuple(gpu.strip() for gpu in named.split(",") if gpu.strip())
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ()
    if library.nvmlInit_v2() != 0:
        return ()
    try:
        return _uuids(library)
    finally:
        library.nvmlShutdown()


def _uuids(library: ctypes.CDLL) -> tuple[str, ...]:
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return ()
    found = []
    for number in range(count.value):
        handle, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(_UUID_BYTES)
        if library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)) != 0:
            continue
        if library.nvmlDeviceGetUUID(handle, uuid, _UUID_BYTES) == 0:
            found.append(uuid.value.decode())
    return tuple(found)
