"""Figures of the benchmarks in one style, drawn from a report's JSON; imported by benchmarks only.

`python -m benchmarks.redraw` draws the committed results again.
"""
