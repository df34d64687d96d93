"""Guided output: tokens that keep a text within a grammar; masks are computed while the model runs."""

from tidal.flover.guided.grammars import GuidedGrammars
from tidal.flover.guided.masks import GuidedConstraint, MaskWorker

__all__ = ["GuidedConstraint", "GuidedGrammars", "MaskWorker"]
