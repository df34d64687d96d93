"""Flover: generations of different length and arrival share every decode step (temporal fusion); a system."""
