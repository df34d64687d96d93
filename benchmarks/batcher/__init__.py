"""The custom batcher compared with Triton's default dynamic batcher, in front of the `engine` backend."""
