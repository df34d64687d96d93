"""Tidal's routers against those of Ray Serve, three nodes each: `python -m benchmarks.cluster.serve_routers`."""
