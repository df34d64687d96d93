"""Exports the frozen encoder that tasks share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openvino as ov

from tidal.pets.base import BaseInfo, make_base_layers
from tidal.pets.engine.description import DESCRIPTION_FILE, GRAPH_FILE, WEIGHTS_FILE
from tidal.pets.opening import PETS_ENGINES, PetsEngineKind
from tidal.pets.terms import BaseLayers
from tidal.tensor_file import pack_tensors
from tidal_builders.pets.encoder import Encoder, read_encoder
from tidal_builders.pets.graph import build_graph
from tidal_builders.pets.weights import weights_of


def base_layers(encoder: Encoder) -> tuple[BaseLayers, BaseInfo]:
    """Make the layers that tasks may change, with the digest of all weights of the encoder."""
    return make_base_layers(encoder.linear, encoder.norm, encoder.frozen, encoder.width)


def export_encoder(
    model: Any, folder: Path, engine: PetsEngineKind = "openvino", *, attention: bool = False
) -> tuple[BaseLayers, BaseInfo]:
    """Write a `transformers` encoder, or the encoder within a model, as an engine reads it.

    Args:
        model: Model, for example `AutoModel.from_pretrained(...)`; see `read_encoder` for what is pooled.
        folder: Folder that gets `encoder.json` and the weights: `encoder.xml` and `encoder.bin`, or
            `encoder.safetensors`.
        engine: Engine that will run the encoder; for TensorRT everything except the plan is written, see `dense`.
        attention: Whether the graph returns the attention that tokens receive; see `PetsEngineEntry.attention`.

    Returns:
        The layers that tasks may change, which `write_base_layers` publishes, and the content of `pets.json`.

    Raises:
        Unsupported: The encoder does not have BERT's form.
        NotFound: The library of graph operations is not built, for OpenVINO.
    """
    encoder = read_encoder(model)
    layers, info = base_layers(encoder)
    folder.mkdir(parents=True, exist_ok=True)
    entry = PETS_ENGINES[engine]
    if entry.graph:
        graph, description = build_graph(encoder, layers.digest, attention=attention)
        ov.save_model(graph, folder / GRAPH_FILE, compress_to_fp16=False)
    else:
        weights, description = weights_of(encoder, layers.digest, hidden=entry.hidden)
        (folder / WEIGHTS_FILE).write_bytes(pack_tensors(weights))
    (folder / DESCRIPTION_FILE).write_text(description.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return layers, info
