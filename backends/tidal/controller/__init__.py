"""The controller that rebalances and scales partitioned models on one node or many (Arlo §3.3, §4), without Ray.

Imports `tidal.server`, `tidal.arlo.scheduling` and `tidal.repository`; imported by `tidal controller`, `tidal.cluster`,
whose agents are on other machines, and benchmarks.
"""
