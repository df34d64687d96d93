"""The HTTP guard: path and build of a library, preloaded into tritonserver, that refuses requests which would crash it.

Imported by `tidal serve`, `tidal doctor` and the wheel build.
"""
