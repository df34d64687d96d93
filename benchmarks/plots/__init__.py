"""Figures of the benchmarks in one style, drawn from a report's JSON; imported by benchmarks only.

`python -m benchmarks.plots` draws the committed results again.
"""
