"""Builds without the time that precise profiles take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from tidal_builders.timing import measure


@contextmanager
def quick_profiles() -> Iterator[None]:
    """Time each call of a profile once per round and without pauses, until the end of the block."""
    with patch("tidal_builders.timing._BLOCK_S", 0.0), patch.dict(measure.__kwdefaults__, pause_s=0.0):
        yield
