"""The request log: one JSON line per answered request. Written by the boundary, filled in by the systems; no Triton."""
