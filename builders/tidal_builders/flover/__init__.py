"""Decoders that generate for many requests at once: weights, verification, profile."""
