"""One engine as a separate Triton model, served by the `engine` backend; independent of Triton.

Imported by `tidal.triton`, Arlo and the builders.
"""
