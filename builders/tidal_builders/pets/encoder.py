"""A Hugging Face encoder as plain arrays, layer by layer: the source of the engine's graph.

Encoders of BERT's form are known: attention, then a feed-forward layer, each followed by a normalisation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidal.errors import Unsupported, did_you_mean
from tidal.pets.engine.description import BlockPaths
from tidal.pets.terms import FloatArray, LinearLayer, NormLayer
from tidal_builders.foreign.files import array_of

# A base's activation function by Hugging Face's name, and the operation's name for it.
_ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu", "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pooler:
    """A linear layer with an activation on the first token's vector."""

    path: str
    activation: str


@dataclass(frozen=True, slots=True)
class Encoder:
    """The weights of an encoder, in memory of their own, and everything else that its computation depends on.

    Attributes:
        model_type: Model type in Hugging Face's configuration.
        words: Word embeddings [vocabulary, width].
        positions: Position embeddings [longest, width]; with a single token type, its vector is added.
        types: Token type embeddings [types, width], or None for at most one type.
        frozen: Weights of the three tables by Hugging Face's name.
        embedding_norm: Path of the normalisation of the embeddings.
        blocks: Paths of the layers of every block.
        pooler: Pooler, or None if the pooled vector is the first token's last hidden state.
        heads: Number of attention heads.
        activation: Name of the feed-forward layer's activation.
        epsilon: Epsilon of the normalisations.
        linear: Linear layers by path.
        norm: Normalisations by path.
    """

    model_type: str
    words: FloatArray
    positions: FloatArray
    types: FloatArray | None
    frozen: Mapping[str, FloatArray]
    embedding_norm: str
    blocks: tuple[BlockPaths, ...]
    pooler: Pooler | None
    heads: int
    activation: str
    epsilon: float
    linear: Mapping[str, LinearLayer]
    norm: Mapping[str, NormLayer]

    @property
    def width(self) -> int:
        """Size of the hidden states and of the pooled vector."""
        return self.words.shape[1]


def read_encoder(model: Any) -> Encoder:
    """Read a `transformers` model: an encoder, or a model that contains one.

    The pooled vector is the pooler's if the encoder has one (BERT), else `pre_classifier`'s with ReLU if the model
    around it has that layer (DistilBertForSequenceClassification), else the first token's last hidden state.

    Args:
        model: Model of transformers.

    Raises:
        Unsupported: The encoder does not have BERT's form.
    """
    encoder = model.base_model
    model_type = encoder.config.model_type
    read = _READERS.get(model_type)
    if read is None:
        raise Unsupported(f"encoder type '{model_type}' cannot serve tasks: {did_you_mean(model_type, _READERS)}")
    return read(model, encoder)


def _read_bert(model: Any, encoder: Any) -> Encoder:
    config, state = encoder.config, _State(encoder)
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        raise Unsupported("a decoder cannot serve tasks: accepted are encoders")
    if getattr(config, "position_embedding_type", None) not in (None, "absolute"):
        raise Unsupported(f"position_embedding_type '{config.position_embedding_type}' is not supported: 'absolute' is")
    blocks = tuple(
        BlockPaths(
            query=f"encoder.layer.{i}.attention.self.query",
            key=f"encoder.layer.{i}.attention.self.key",
            value=f"encoder.layer.{i}.attention.self.value",
            attention_output=f"encoder.layer.{i}.attention.output.dense",
            attention_norm=f"encoder.layer.{i}.attention.output.LayerNorm",
            inner=f"encoder.layer.{i}.intermediate.dense",
            outer=f"encoder.layer.{i}.output.dense",
            output_norm=f"encoder.layer.{i}.output.LayerNorm",
        )
        for i in range(config.num_hidden_layers)
    )
    types = state.table("embeddings.token_type_embeddings.weight")
    positions = state.table("embeddings.position_embeddings.weight")
    if config.model_type != "bert":  # RoBERTa's positions begin after the padding token's
        positions = positions[config.pad_token_id + 1 :]
    single = types.shape[0] == 1
    pooler = Pooler("pooler.dense", "tanh") if getattr(encoder, "pooler", None) is not None else None
    return Encoder(
        model_type=config.model_type,
        words=state.table("embeddings.word_embeddings.weight"),
        positions=positions + types[0] if single else positions,
        types=None if single else types,
        frozen=dict(state.tables),
        embedding_norm="embeddings.LayerNorm",
        blocks=blocks,
        pooler=pooler,
        heads=config.num_attention_heads,
        activation=activation_name(config.hidden_act),
        epsilon=config.layer_norm_eps,
        **state.layers(blocks, "embeddings.LayerNorm", pooler),
    )


def _read_distilbert(model: Any, encoder: Any) -> Encoder:
    config, state = encoder.config, _State(encoder)
    blocks = tuple(
        BlockPaths(
            query=f"transformer.layer.{i}.attention.q_lin",
            key=f"transformer.layer.{i}.attention.k_lin",
            value=f"transformer.layer.{i}.attention.v_lin",
            attention_output=f"transformer.layer.{i}.attention.out_lin",
            attention_norm=f"transformer.layer.{i}.sa_layer_norm",
            inner=f"transformer.layer.{i}.ffn.lin1",
            outer=f"transformer.layer.{i}.ffn.lin2",
            output_norm=f"transformer.layer.{i}.output_layer_norm",
        )
        for i in range(config.n_layers)
    )
    around = getattr(model, "pre_classifier", None)
    pooler = Pooler("pre_classifier", "relu") if around is not None else None
    if around is not None:
        state.add("pre_classifier", around)
    return Encoder(
        model_type=config.model_type,
        words=state.table("embeddings.word_embeddings.weight"),
        positions=state.table("embeddings.position_embeddings.weight"),
        types=None,
        frozen=dict(state.tables),
        embedding_norm="embeddings.LayerNorm",
        blocks=blocks,
        pooler=pooler,
        heads=config.n_heads,
        activation=activation_name(config.activation),
        epsilon=1e-12,  # DistilBERT's configuration does not name it
        **state.layers(blocks, "embeddings.LayerNorm", pooler),
    )


_READERS: dict[str, Callable[[Any, Any], Encoder]] = {
    "bert": _read_bert, "roberta": _read_bert, "xlm-roberta": _read_bert, "distilbert": _read_distilbert,
}  # fmt: skip


class _State:
    """A module's weights as float32 arrays, and the tables that were read."""

    def __init__(self, module: Any) -> None:
        # Copies: views would change with the model, which a caller may change in place.
        self._arrays: dict[str, FloatArray] = {name: array_of(tensor) for name, tensor in module.state_dict().items()}
        self.tables: dict[str, FloatArray] = {}

    def add(self, path: str, module: Any) -> None:
        self._arrays.update({f"{path}.{name}": array for name, array in _State(module)._arrays.items()})

    def table(self, name: str) -> FloatArray:
        self.tables[name] = self._arrays[name]
        return self._arrays[name]

    def layers(self, blocks: tuple[BlockPaths, ...], norm: str, pooler: Pooler | None) -> dict[str, Any]:
        linear, norms = [], [norm]
        for block in blocks:
            linear += [block.query, block.key, block.value, block.attention_output, block.inner, block.outer]
            norms += [block.attention_norm, block.output_norm]
        linear += [pooler.path] if pooler else []
        return {
            "linear": {path: LinearLayer(*self._pair(path)) for path in linear},
            "norm": {path: NormLayer(*self._pair(path)) for path in norms},
        }

    def _pair(self, path: str) -> tuple[FloatArray, FloatArray]:
        weight = self._arrays[f"{path}.weight"]
        return weight, self._arrays.get(f"{path}.bias", np.zeros(weight.shape[0], np.float32))


def activation_name(name: object) -> str:
    """The name of an activation in engines, by transformers' name.

    Args:
        name: Name in the configuration of a model.

    Raises:
        Unsupported: Engines do not have it.
    """
    found = _ACTIVATIONS.get(str(name))
    if found is None:
        raise Unsupported(f"activation '{name}' is not supported: {did_you_mean(str(name), _ACTIVATIONS)}")
    return found
