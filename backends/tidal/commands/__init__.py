"""Subcommands of `tidal` that come with the serving package."""
