"""Builds cascades of classifiers: calibration, search for candidates, measurement through a server, publication
(Tabi §5). `tidal_builders.commands` imports it; it never imports Triton.
"""
