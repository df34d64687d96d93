"""Arlo on clusters that nobody has at hand."""
