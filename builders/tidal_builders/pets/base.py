"""Exports the frozen encoder that tasks share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openvino as ov

from tidal.pets.base import BaseInfo, make_base_layers
from tidal.pets.engine.description import DESCRIPTION_FILE, GRAPH_FILE
from tidal.pets.terms import BaseLayers
from tidal_builders.pets.encoder import Encoder, read_encoder
from tidal_builders.pets.graph import build_graph


def base_layers(encoder: Encoder) -> tuple[BaseLayers, BaseInfo]:
    """The layers that tasks may change, with the digest of all weights of the encoder."""
    return make_base_layers(encoder.linear, encoder.norm, encoder.frozen, encoder.width)


def export_encoder(model: Any, folder: Path) -> tuple[BaseLayers, BaseInfo]:
    """Write the engine's graph of a `transformers` encoder, or of the encoder within a model, into `folder`.

    Args:
        model: for example `AutoModel.from_pretrained(...)`; see `read_encoder` for what is pooled.
        folder: gets `encoder.xml`, `encoder.bin` and `encoder.json`.

    Returns:
        The layers that tasks may change, which `write_base_layers` publishes.

    Raises:
        Unsupported: the encoder is of another form than BERT's.
        NotFound: the library with the graph's operations is not built.
    """
    encoder = read_encoder(model)
    layers, info = base_layers(encoder)
    graph, description = build_graph(encoder, layers.digest)
    folder.mkdir(parents=True, exist_ok=True)
    ov.save_model(graph, folder / GRAPH_FILE, compress_to_fp16=False)
    (folder / DESCRIPTION_FILE).write_text(description.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return layers, info
