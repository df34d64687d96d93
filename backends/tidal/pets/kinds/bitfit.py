"""BitFit (Ben Zaken et al.): biases of linear layers and normalisations, which every kind may have; it adds none."""

from __future__ import annotations

from tidal.pets.kinds.kind import Kind
from tidal.pets.kinds.tensors import LayerTensors
from tidal.pets.terms import LinearLayer, LinearTerms
from tidal.tasks.stored import Storage
from tidal.tensor_file import Array


def _read(tensors: LayerTensors) -> LinearTerms:
    return LinearTerms()


def _write(terms: LinearTerms, layer: LinearLayer, storage: Storage) -> dict[str, Array]:
    return {}


KIND = Kind("bitfit", "biases (BitFit)", (), _read, _write)
