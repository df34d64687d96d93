"""Serving policies under a virtual clock: request traces here, one folder for each simulated system.

`arlo` and `otas` import this package, never each other. Commands and benchmarks import all three. Nothing here imports
an engine, a server or Triton.
"""
