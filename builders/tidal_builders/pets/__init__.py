"""Builds what the `pets` backend serves: a frozen encoder, and tasks made for it."""
