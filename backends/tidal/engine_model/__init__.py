"""One engine as a Triton model of its own: what the `engine` backend serves. No Triton in it."""
