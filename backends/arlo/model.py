"""Triton backend `arlo`: encoders for varying input length. A thin adapter of `tidal.arlo` to Triton."""

from __future__ import annotations
