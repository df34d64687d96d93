"""Start, supervise and stop a tritonserver, and change what it serves.

Commands, the controller, builders and benchmarks import it; it imports `tidal.repository` and no system.
"""
