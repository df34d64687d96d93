"""Flover: generations of different length and arrival share every decoding step (temporal fusion)."""
