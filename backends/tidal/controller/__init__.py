"""The controller that rebalances and scales partitioned models beside a running server (Arlo §3.3, §4).

Imports `tidal.server`, `tidal.arlo.scheduling` and `tidal.repository`; imported by `tidal controller` and benchmarks.
"""
