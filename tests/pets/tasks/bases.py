"""Published bases without an engine."""

from __future__ import annotations

from pathlib import Path

from tidal.pets.base import make_base_layers, write_base_layers
from tidal.pets.terms import BaseLayers


def publish(repository: Path, base: BaseLayers, version: int = 1) -> None:
    folder = repository / "encoder" / str(version)
    folder.mkdir(parents=True)
    layers, info = make_base_layers(base.linear, base.norm, {}, base.width)
    write_base_layers(folder, layers, info)
