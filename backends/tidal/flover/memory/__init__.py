"""Slots of sequences and the keys and values in them; may import `tidal.flover.models.form` and the native library."""
