"""A Triton model repository on disk: its entries, their configs and allocations.

Knows no system: systems, builders, the server and the commands import it.
"""
