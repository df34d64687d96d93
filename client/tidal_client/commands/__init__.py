"""Subcommands of `tidal` that need only the client."""
