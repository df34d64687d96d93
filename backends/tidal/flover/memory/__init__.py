"""Slots of sequences and the keys and values in them; may import `tidal.flover.form` and the native library."""
