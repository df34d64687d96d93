"""Checks that an adapter was trained on the encoder that a model was built from."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tidal_builders.foreign.trained_on import ServedBase, TrainedOn, trained_on
from tidal_builders.pets.importing.imported import ImportBase, ImportOptions


def confirm_base(adapter: Path, named: str, base: ImportBase, options: ImportOptions) -> TrainedOn:
    """Compare the base that an adapter names with the model's own.

    Args:
        adapter: Folder of the adapter.
        named: Base that the adapter names.
        base: Base of the model.
        options: Options of the import.

    Raises:
        InvalidArgument: It is another base, or cannot be compared; see `trained_on`.
    """
    served = ServedBase(base.name, base.folder, partial(_same, base))
    return trained_on(adapter, named, served, options.base_model, force=options.force)


def _same(base: ImportBase, folder: Path) -> bool:
    """Whether an encoder's folder has the base's weights; a missing pooler is 0, as in a build."""
    from tidal_builders.pets.base import base_layers  # transformers: slow to load
    from tidal_builders.pets.encoder import read_encoder
    from tidal_builders.pets.source import load_encoder

    return base_layers(read_encoder(load_encoder(folder)[0]))[0].digest == base.layers.digest
