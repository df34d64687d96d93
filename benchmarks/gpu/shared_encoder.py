"""PetS's frozen encoder of BERT's form with random weights and tasks of every kind, and full models as its peers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.gpu.encoder import EncoderSize, size_of
from benchmarks.gpu.recording import Setting
from tidal.device import DeviceKind
from tidal.pets.base import make_base_layers
from tidal.pets.engine.description import DESCRIPTION_FILE, WEIGHTS_FILE, BlockPaths
from tidal.pets.terms import BaseLayers, FloatArray, LinearLayer, NormLayer
from tidal.pets.torch_engine.engine import TorchPetsEngine, open_torch_engine
from tidal.pets.torch_engine.tasks import TorchTask
from tidal.tensor_file import pack_tensors
from tidal_builders.pets.encoder import Encoder, Pooler
from tidal_builders.pets.typical import TYPICAL_KINDS, typical_task
from tidal_builders.pets.weights import weights_of

_BLOCK = {
    "query": "attention.self.query", "key": "attention.self.key", "value": "attention.self.value",
    "attention_output": "attention.output.dense", "attention_norm": "attention.output.LayerNorm",
    "inner": "intermediate.dense", "outer": "output.dense", "output_norm": "output.LayerNorm",
}  # fmt: skip


def random_encoder(size: EncoderSize, seed: int = 0) -> Encoder:
    """Return an encoder of BERT's form with random weights."""
    draw = np.random.default_rng(seed)

    def values(*shape: int) -> FloatArray:
        return draw.standard_normal(shape, np.float32) * np.float32(0.02)

    blocks = tuple(
        BlockPaths(**{name: f"encoder.layer.{number}.{path}" for name, path in _BLOCK.items()})
        for number in range(size.layers)
    )
    linear, norm = {}, {"embeddings.LayerNorm": _norm(size.width)}
    for block in blocks:
        for path in (block.query, block.key, block.value, block.attention_output):
            linear[path] = LinearLayer(values(size.width, size.width), values(size.width))
        linear[block.inner] = LinearLayer(values(size.inner, size.width), values(size.inner))
        linear[block.outer] = LinearLayer(values(size.width, size.inner), values(size.width))
        norm |= {block.attention_norm: _norm(size.width), block.output_norm: _norm(size.width)}
    linear["pooler.dense"] = LinearLayer(values(size.width, size.width), values(size.width))
    words, positions = values(size.vocabulary, size.width), values(size.longest, size.width)
    return Encoder(
        model_type="bert", words=words, positions=positions, types=None,
        frozen={"embeddings.word_embeddings.weight": words, "embeddings.position_embeddings.weight": positions},
        embedding_norm="embeddings.LayerNorm", blocks=blocks, pooler=Pooler("pooler.dense", "tanh"), heads=size.heads,
        activation="gelu", epsilon=1e-12, linear=linear, norm=norm,
    )  # fmt: skip


class SharedEncoder:
    """The frozen encoder in a folder, as PetS's torch engine reads it.

    Attributes:
        folder: Folder of the encoder.
        layers: Layers that tasks may change.
    """

    def __init__(self, setting: Setting) -> None:
        encoder = random_encoder(size_of(setting))
        self.folder: Path = setting.work("shared-encoder")
        self.layers: BaseLayers = make_base_layers(encoder.linear, encoder.norm, encoder.frozen, encoder.width)[0]
        if not (self.folder / DESCRIPTION_FILE).exists():
            weights, description = weights_of(encoder, self.layers.digest, hidden=True)
            (self.folder / WEIGHTS_FILE).write_bytes(pack_tensors(weights))
            (self.folder / DESCRIPTION_FILE).write_text(description.model_dump_json(), encoding="utf-8")

    def open(self, device: DeviceKind) -> TorchPetsEngine:
        """Open the encoder."""
        return open_torch_engine(self.folder, threads=1, device=device)

    def add_tasks(self, engine: TorchPetsEngine, count: int, kinds: Sequence[str] = TYPICAL_KINDS) -> list[TorchTask]:
        """Load random tasks, of each kind in turn; two of a kind have equal values."""
        made = {kind: typical_task(kind, self.layers) for kind in dict.fromkeys(kinds)}
        return [engine.add(made[kinds[number % len(kinds)]]) for number in range(count)]


def _norm(width: int) -> NormLayer:
    return NormLayer(np.ones(width, np.float32), np.zeros(width, np.float32))
