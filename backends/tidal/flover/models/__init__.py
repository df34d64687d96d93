"""Decoder models: one description of their variants, their weights, and the passes over slots."""
