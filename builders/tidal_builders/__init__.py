"""Builds models offline: export, compile, verify, profile and publish. `tidal` never imports it."""
