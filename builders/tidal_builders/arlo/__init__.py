"""Builds text classifiers for the `arlo` backend."""

from tidal_builders.arlo.build import build_arlo

__all__ = ["build_arlo"]
