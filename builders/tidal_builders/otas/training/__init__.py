"""Train tasks of a vision transformer: heads, and prompts by γ; imported by `tidal_builders.otas.registration`."""
