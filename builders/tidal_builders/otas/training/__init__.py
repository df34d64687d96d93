"""Trains tasks of a vision transformer: heads, and prompts by γ."""
