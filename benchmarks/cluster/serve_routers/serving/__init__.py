"""Programs of Ray Serve, which run in the environment of peers."""
