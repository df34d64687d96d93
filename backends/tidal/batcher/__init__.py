"""The custom batcher: path and build of a shared object that tritonserver loads to form batches.

Imported by `tidal doctor` and the wheel build.
"""
