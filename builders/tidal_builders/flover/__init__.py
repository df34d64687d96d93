"""Builds decoders for the `flover` backend, and imports their tasks; never imports `tidal.triton`."""
