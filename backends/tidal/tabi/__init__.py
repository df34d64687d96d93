"""Tabi: a cascade that answers easy queries with a small model at a large model's accuracy."""
