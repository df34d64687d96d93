"""The commands `tidal gateway` and `tidal keys`."""
