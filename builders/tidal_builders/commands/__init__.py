"""Subcommands of `tidal` that builders bring."""
