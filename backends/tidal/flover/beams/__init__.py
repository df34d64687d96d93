"""Beam search of one prompt, and the slots that hold its beams; may import torch and `tidal.flover.memory.slots`."""

from tidal.flover.beams.group import BeamGroup
from tidal.flover.beams.search import BeamHypothesis, BeamSearch, BeamSettings
from tidal.flover.beams.slot_assignment import BeamSlots

__all__ = ["BeamGroup", "BeamHypothesis", "BeamSearch", "BeamSettings", "BeamSlots"]
