"""A slow float64 reference of the transformer with prompts and merging, which handles one list of tokens per image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import erf, exp, log, sqrt
from typing import Any

import numpy as np

from tidal_builders.otas.vit import Vit

Vector = Any  # a float64 array of one dimension


@dataclass
class Token:
    """A class token, a prompt, or one or more merged patches."""

    value: Vector
    kind: str
    patches: list[int]


def features(vit: Vit, gamma: int, image: Vector, prompts: Vector | None, *, accumulate: bool) -> tuple[Vector, Any]:
    """Compute the features of one image.

    Only models with a class token and plain layers are supported.

    Args:
        vit: Weights and configuration.
        gamma: Number of prompts per layer, or minus the number of tokens to merge per layer.
        image: Pixels [channels, height, width].
        prompts: Prompts [layers, γ, width]; None for γ up to 0.
        accumulate: Whether prompts stay in later layers.

    Returns:
        The features, and for each patch token after the last layer the patches that were merged into it.
    """
    weights = {name: tensor.double().numpy() for name, tensor in vit.tensors.items()}
    config = vit.config
    tokens = _embed(vit, weights, image)
    for layer in range(config.layers):
        at = f"blocks.{layer}."
        if gamma > 0:
            assert prompts is not None
            if not accumulate:
                tokens = [token for token in tokens if token.kind != "prompt"]
            # After the class token, as in VPT.
            new = [Token(np.array(value, np.float64), "prompt", []) for value in prompts[layer]]
            tokens = [tokens[0], *new, *tokens[1:]]
        normed = [_norm(token.value, weights, f"{at}norm1") for token in tokens]
        attended, keys = _attend(normed, [len(t.patches) or 1 for t in tokens], weights, at, config.heads)
        for token, change in zip(tokens, attended, strict=True):
            token.value = token.value + change
        if gamma < 0:
            tokens = _merge(tokens, keys, -gamma)
        for token in tokens:
            inner = weights[f"{at}mlp.fc1.weight"] @ _norm(token.value, weights, f"{at}norm2")
            inner = inner + weights[f"{at}mlp.fc1.bias"]
            inner = np.array([x * 0.5 * (1 + erf(x / sqrt(2))) for x in inner])
            token.value = token.value + weights[f"{at}mlp.fc2.weight"] @ inner + weights[f"{at}mlp.fc2.bias"]
    groups = sorted(sorted(token.patches) for token in tokens if token.kind == "patch")
    if config.pool == "token":
        return _norm(tokens[0].value, weights, "norm"), groups
    total = sum(_norm(t.value, weights, "norm") * len(t.patches) for t in tokens if t.kind == "patch")
    return total / config.patches, groups


def _embed(vit: Vit, weights: Mapping[str, Any], image: Vector) -> list[Token]:
    config, found = vit.config, []
    high, wide = config.patch
    for row in range(config.image.height // high):
        for column in range(config.image.width // wide):
            pixels = image[:, row * high : (row + 1) * high, column * wide : (column + 1) * wide]
            kernel = weights["patch_embed.proj.weight"]
            value = (kernel * pixels[None]).sum(axis=(1, 2, 3)) + weights["patch_embed.proj.bias"]
            found.append(Token(value, "patch", [len(found)]))
    tokens = [Token(weights["cls_token"][0, 0], "class", []), *found]
    for token, position in zip(tokens, weights["pos_embed"][0], strict=True):
        token.value = token.value + position
    return tokens


def _norm(value: Vector, weights: Mapping[str, Any], name: str) -> Vector:
    centred = value - value.mean()
    return centred / sqrt((centred**2).mean() + 1e-6) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _attend(
    normed: list[Vector], sizes: list[int], weights: Mapping[str, Any], at: str, heads: int
) -> tuple[list[Vector], list[Vector]]:
    projected = [weights[f"{at}attn.qkv.weight"] @ each + weights[f"{at}attn.qkv.bias"] for each in normed]
    width = len(normed[0])
    per = width // heads
    outputs = [np.zeros(width) for _ in normed]
    for head in range(heads):
        span = slice(head * per, (head + 1) * per)
        for here, query in enumerate(projected):
            scores = [
                float(query[:width][span] @ key[width : 2 * width][span]) / sqrt(per) + log(size)
                for key, size in zip(projected, sizes, strict=True)
            ]
            largest = max(scores)
            parts = [exp(score - largest) for score in scores]
            for part, value in zip(parts, projected, strict=True):
                outputs[here][span] += part / sum(parts) * value[2 * width :][span]
    keys = [each[width : 2 * width].reshape(heads, per).mean(axis=0) for each in projected]
    return [weights[f"{at}attn.proj.weight"] @ o + weights[f"{at}attn.proj.bias"] for o in outputs], keys


def _merge(tokens: list[Token], keys: list[Vector], wanted: int) -> list[Token]:
    patches = [(token, key) for token, key in zip(tokens, keys, strict=True) if token.kind == "patch"]
    leaving, staying = patches[0::2], patches[1::2]
    edges = []
    for token, key in leaving:
        near = [float(key @ other) / (np.linalg.norm(key) * np.linalg.norm(other)) for _, other in staying]
        best = int(np.argmax(near))
        edges.append((near[best], token, staying[best][0]))
    count = max(0, min(wanted, len(patches) // 2, len(patches) - 4))
    edges.sort(key=lambda edge: -edge[0])
    sums = {id(token): token.value * len(token.patches) for token, _ in patches}
    for _, token, target in edges[:count]:
        sums[id(target)] = sums[id(target)] + sums[id(token)]
        target.patches = target.patches + token.patches
    for token, _ in staying:
        token.value = sums[id(token)] / len(token.patches)
    # The unmerged tokens of the first half by similarity, then the second half.
    return [tokens[0], *(token for _, token, _ in edges[count:]), *(token for token, _ in staying)]
