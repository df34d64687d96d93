"""Beam search of one prompt: which texts go on, and which of its slots hold them."""

from tidal.flover.beams.group import BeamGroup
from tidal.flover.beams.places import Places
from tidal.flover.beams.search import BeamSearch, BeamSettings, Text

__all__ = ["BeamGroup", "BeamSearch", "BeamSettings", "Places", "Text"]
