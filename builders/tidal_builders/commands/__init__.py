"""Subcommands of `tidal` that need builders. No other package imports it."""
