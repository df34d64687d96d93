"""Comparison for Tabi: single models, a voting ensemble, and a cascade with and without each of its parts."""
