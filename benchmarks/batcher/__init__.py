"""The custom batcher against Triton's plain dynamic batcher, in front of the `engine` backend."""
