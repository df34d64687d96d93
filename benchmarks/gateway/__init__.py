"""The benchmark of `tidal gateway`: its latency and cost per request, its streams, and answers that survive kills."""
