"""An encoder as plain weights and a description of their computation, for engines without a graph."""

from __future__ import annotations

from typing import Any, cast

from tidal.pets.engine.description import WORDS, Description, EncoderForm, LinearSpec, NormSpec
from tidal.pets.terms import FloatArray
from tidal_builders.pets.encoder import Encoder


def weights_of(encoder: Encoder, digest: str, *, hidden: bool = True) -> tuple[dict[str, FloatArray], Description]:
    """The weights of an encoder by name, and their description.

    Args:
        encoder: Weights of the encoder.
        digest: Digest of all weights, by which tasks name the encoder.
        hidden: Whether the engine returns hidden states, and not only pooled vectors.
    """
    weights = {WORDS: encoder.words, "positions": encoder.positions}
    if encoder.types is not None:
        weights["types"] = encoder.types
    linear, norm = [], []
    followed = {block.attention_output: block.attention_norm for block in encoder.blocks}
    followed |= {block.outer: block.output_norm for block in encoder.blocks}
    for path, layer in encoder.linear.items():
        names = f"{path}.weight", f"{path}.bias"
        weights |= dict(zip(names, (layer.weight, layer.bias), strict=True))
        outputs, inputs = layer.shape
        sizes = {"outputs": outputs, "inputs": inputs}
        linear.append(LinearSpec(path=path, weight=names[0], bias=names[1], norm=followed.get(path), **sizes))
    for path, own in encoder.norm.items():
        names = f"{path}.weight", f"{path}.bias"
        weights |= dict(zip(names, (own.weight, own.bias), strict=True))
        norm.append(NormSpec(path=path, width=len(own.weight), weight=names[0], bias=names[1]))
    pooler = encoder.pooler
    form = EncoderForm(
        heads=encoder.heads,
        activation=cast(Any, encoder.activation),
        epsilon=encoder.epsilon,
        embedding_norm=encoder.embedding_norm,
        blocks=encoder.blocks,
        pooler=None if pooler is None else pooler.path,
        pooler_activation=None if pooler is None else cast(Any, pooler.activation),
    )
    description = Description(
        digest=digest,
        model_type=encoder.model_type,
        width=encoder.width,
        vocabulary=encoder.words.shape[0],
        longest=encoder.positions.shape[0],
        types=0 if encoder.types is None else encoder.types.shape[0],
        linear=tuple(linear),
        norm=tuple(norm),
        form=form,
        hidden=hidden,
    )
    return weights, description
