"""Lengths and forms that a build chooses by itself, compared with every ladder that one might write by hand."""
