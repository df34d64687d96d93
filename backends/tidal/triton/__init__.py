"""The boundary to Triton: the only code that imports triton_python_backend_utils."""
