"""The custom batcher: a shared object that tritonserver loads to decide which requests form a batch."""
