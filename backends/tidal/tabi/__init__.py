"""Tabi: a cascade that answers easy queries with a small model at the accuracy of a large one.

The equations, the manifest and the routes are shared with the builder, the tests and the benchmarks; the service, the
queues and the calls to the levels are imported by the Triton backend only.
"""
