"""The shared object of the custom batcher: its path is the value for TRITON_BATCH_STRATEGY_PATH."""

from __future__ import annotations

from typing import Final

from tidal.compiling import ServerLibrary

BUILD_COMMAND = "python -m tidal.batcher.build"
LIBRARY: Final = ServerLibrary("batcher", "batcher.cpp", "tidal_batcher")
