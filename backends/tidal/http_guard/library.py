"""The shared object of the HTTP guard."""

from __future__ import annotations

from typing import Final

from tidal.compiling import ServerLibrary

BUILD_COMMAND = "python -m tidal.http_guard.build"
LIBRARY: Final = ServerLibrary("http_guard", "guard.cpp", "tidal_http_guard")
