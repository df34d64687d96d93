"""Request log, one JSON line per answered request: written by `tidal.triton`, completed by systems; no Triton."""
