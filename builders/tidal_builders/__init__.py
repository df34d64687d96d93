"""Offline builders: export, compile, verify, profile and publish."""
