"""Builds cascades of classifiers: calibration, search for candidates, and what is reported of them (Tabi §5)."""
