"""Models whose engines return one vector for each text: pooling, dense layers and normalisation inside the graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tidal.errors import InvalidArgument
from tidal_builders.encoder_tasks.pooling import Pooling
from tidal_builders.encoder_tasks.prepared import Prepared, PrepareOptions
from tidal_builders.encoder_tasks.sentence_files import (
    SentenceModule,
    pooling_modes,
    read_modules,
    read_options,
    served_prompts,
    similarity,
    transformer_limits,
)
from tidal_builders.foreign.files import read_weights

_ACTIVATIONS: dict[str, Callable[[], torch.nn.Module]] = {
    "Identity": torch.nn.Identity,
    "Tanh": torch.nn.Tanh,
    "ReLU": torch.nn.ReLU,
    "GELU": torch.nn.GELU,
    "SiLU": torch.nn.SiLU,
    "Sigmoid": torch.nn.Sigmoid,
}
_SAVE = "save the model with a recent sentence-transformers, which writes safetensors"


class EmbeddingTail(torch.nn.Module):
    """From the vectors of tokens to an embedding.

    Args:
        modes: Ways to pool.
        layers: Modules after the pooling.
    """

    def __init__(self, modes: tuple[str, ...], layers: list[torch.nn.Module]) -> None:
        super().__init__()
        self.pooling = Pooling(modes)
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, outputs: Any, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return embeddings [rows, width]."""
        vectors: torch.Tensor = self.pooling(outputs.last_hidden_state, attention_mask)
        for layer in self.layers:
            vectors = layer(vectors)
        return vectors


class Dense(torch.nn.Module):
    """A linear layer with an activation function.

    Args:
        linear: The layer.
        activation: The function.
    """

    def __init__(self, linear: torch.nn.Linear, activation: torch.nn.Module) -> None:
        super().__init__()
        self.linear = linear
        self.activation = activation

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return [rows, outputs]."""
        transformed: torch.Tensor = self.activation(self.linear(vectors.to(self.linear.weight.dtype)))
        return transformed


class Normalize(torch.nn.Module):
    """Gives vectors a length of 1."""

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return [rows, width]."""
        return torch.nn.functional.normalize(vectors.float(), dim=1)


def prepare_embedding(folder: Path, model: Any, options: PrepareOptions) -> Prepared:
    """Prepare an encoder, with the modules of sentence-transformers if the folder has them.

    Raises:
        InvalidArgument: A module is not supported, no file and no field of the spec says how to pool, or the default
            prompt is unknown.
    """
    modules = read_modules(folder)
    modes, layers, width = _modules(folder, modules, int(model.config.hidden_size))
    if options.pooling is not None:
        if any(isinstance(layer, Dense) for layer in layers):
            raise InvalidArgument(
                f"field 'pooling': {folder} has dense layers after its own pooling, {', '.join(modes)}; remove the "
                "field"
            )
        modes, width = (options.pooling,), int(model.config.hidden_size)
    if not modes:
        raise InvalidArgument(
            f"field 'pooling': {folder} has no modules.json that says how to pool; set pooling to mean, cls or another"
        )
    if options.normalize is not None:
        layers = [layer for layer in layers if not isinstance(layer, Normalize)]
        layers += [Normalize()] if options.normalize else []
    texts, default = served_prompts(folder, options.prompts, options.default_prompt)
    longest, lower_case = transformer_limits(folder)
    settings = {
        "dimension": width,
        "pooling": list(modes),
        "normalized": bool(layers) and isinstance(layers[-1], Normalize),
        "similarity": options.similarity or similarity(read_options(folder)),
        "prompts": texts,
        "default_prompt": default,
    }
    return Prepared(EmbeddingTail(modes, layers), width, settings=settings, max_length=longest, lower_case=lower_case)


def _modules(
    folder: Path, modules: tuple[SentenceModule, ...], width: int
) -> tuple[tuple[str, ...], list[torch.nn.Module], int]:
    """Ways to pool, the layers after it, and the width of the result."""
    if not modules:
        return (), [], width
    kinds = [module.kind for module in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or modules[0].folder != folder:
        raise InvalidArgument(
            f"{folder} has the modules {', '.join(kinds)}; accepted are a Transformer in the folder itself and a "
            "Pooling, then Dense and Normalize"
        )
    modes = pooling_modes(modules[1])
    layers: list[torch.nn.Module] = []
    width *= len(modes)
    for module in modules[2:]:
        if module.kind == "Dense":
            layer = _dense(module, width)
            layers.append(layer)
            width = layer.linear.out_features
        elif module.kind == "Normalize":
            layers.append(Normalize())
        elif module.kind != "Dropout":
            raise InvalidArgument(
                f"{folder} has the module {module.kind} after its pooling; accepted are Dense, Normalize and Dropout"
            )
    return modes, layers, width


def _dense(module: SentenceModule, width: int) -> Dense:
    config = module.config
    named = str(config.get("activation_function") or "torch.nn.modules.activation.Tanh")
    activation = named.rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise InvalidArgument(
            f"{module.folder} has the activation function {named}; accepted are {', '.join(_ACTIVATIONS)}"
        )
    weights = read_weights(module.folder, "model.safetensors", "pytorch_model.bin", _SAVE)
    weight, bias = weights.get("linear.weight"), weights.get("linear.bias")
    if (
        weight is None
        or weight.ndim != 2
        or weight.shape[1] != width
        or (bias is not None and bias.shape != weight.shape[:1])
    ):
        shapes = {name: list(values.shape) for name, values in weights.items()}
        raise InvalidArgument(f"{module.folder} has the weights {shapes}; expected linear.weight [outputs, {width}]")
    linear = torch.nn.Linear(width, weight.shape[0], bias=bias is not None)
    linear.weight = torch.nn.Parameter(torch.from_numpy(weight))
    if bias is not None:
        linear.bias = torch.nn.Parameter(torch.from_numpy(bias))
    return Dense(linear, _ACTIVATIONS[activation]())
