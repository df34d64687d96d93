"""Malformed and hostile requests, the same ones for the same seed. `reliability` and its tests import it."""
