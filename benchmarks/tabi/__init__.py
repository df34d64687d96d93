"""Tabi's comparison: single models, a voting ensemble, and a cascade with and without each of its parts."""
