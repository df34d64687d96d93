"""Boundary to Triton: the only code that imports `triton_python_backend_utils`.

Only the adapters `backends/*/model.py` import it.
"""
