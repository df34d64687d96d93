"""Converts the weights of a source model to the published layout and precision, part by part."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from tidal.flover.form import DecoderForm
from tidal.flover.manifest import INTEGERS, FloverPrecision
from tidal.flover.models.conversion import converted_parts
from tidal.flover.models.quantized import GROUP_SIZES, Quantized, quantize
from tidal.flover.models.weights import DecoderWeights, Dense, ExpertWeights
from tidal.flover.models.weights_file import WeightsWriter, named_tensors
from tidal_builders.flover.quantized_checkpoints import QuantizationScheme, read_layer, scheme_of
from tidal_builders.foreign.files import read_json
from tidal_builders.timing import Progress

_INDEX = "model.safetensors.index.json"
# Prefix of names in `transformers`, which some checkpoints leave out.
_PREFIXES = {"gpt2": "transformer.", "gptj": "transformer.", "gpt_neox": "gpt_neox."}
# Families whose layers are joined without a permutation.
_AS_THEY_ARE = (
    "llama", "mistral", "phi3", "qwen2", "qwen3", "gemma2", "gemma3_text", "olmo2", "mixtral", "qwen2_moe", "qwen3_moe",
    "olmoe",
)  # fmt: skip
# Names in `transformers`, and those in files of Mixtral.
_MIXTRAL_NAMES = (".mlp.gate.", ".block_sparse_moe.gate.")


class SourceTensors(Mapping[str, Any]):
    """The tensors of a source model's files in float32, each read when it is requested.

    Linear layers that the files store as integers are `Quantized` if they can be published as they are.

    Args:
        folder: Folder in Hugging Face format, with weights as safetensors.
        family: Family of the model.
        bits: Number of bits of the integers to keep; None: all weights become floating-point numbers.

    Raises:
        InvalidArgument: The weights are quantised in a way that is not supported.
    """

    def __init__(self, folder: Path, family: str, bits: int | None = None) -> None:
        self._prefix = _PREFIXES.get(family, "model.")
        self._scheme = scheme_of(read_json(folder / "config.json").get("quantization_config"))
        # GPT-2 has weights [inputs, outputs], and is joined with others only as floating-point numbers.
        self._transposed = family == "gpt2"
        self._bits = bits if family in _AS_THEY_ARE else None
        index = folder / _INDEX
        if index.is_file():
            files = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            self._files = {name: folder / file for name, file in files.items()}
        else:
            self._files = {}
            for path in sorted(folder.glob("*.safetensors")):
                with safe_open(path, "pt") as file:
                    self._files |= dict.fromkeys(file.keys(), path)

    @property
    def scheme(self) -> QuantizationScheme | None:
        """How the files store linear layers; None: as floating-point numbers."""
        return self._scheme

    @property
    def kept_group(self) -> int | None:
        """Number of inputs that share a scale in the integers that stay as they are; None if none stay."""
        scheme = self._scheme
        kept = scheme is not None and scheme.bits == self._bits and scheme.group in GROUP_SIZES
        return scheme.group if scheme is not None and kept else None

    def __getitem__(self, name: str) -> torch.Tensor | Quantized:
        if self._scheme is not None and name.endswith(".weight"):
            layer = read_layer(self._scheme, name.removesuffix(".weight"), self._stored)
            if layer is not None:
                kept = layer.quantized() if layer.bits == self._bits else None
                if kept is not None:
                    return kept
                weight = layer.dequantized()
                return weight.T if self._transposed else weight
        tensor = self._stored(name)
        if tensor is None:
            raise KeyError(name)
        return tensor.float()

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        names = [name]
        if self._scheme is not None and name.endswith(".weight"):
            names.append(f"{name.removesuffix('weight')}{self._scheme.packed}")
        return any(self._file_name(each) is not None for each in names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def _file_name(self, name: str) -> str | None:
        """Name of a tensor in the files."""
        names = name, name.removeprefix(self._prefix), name.replace(*_MIXTRAL_NAMES)
        return next((each for each in names if each in self._files), None)

    def _stored(self, name: str) -> torch.Tensor | None:
        stored = self._file_name(name)
        if stored is None:
            return None
        with safe_open(self._files[stored], "pt") as file:
            tensor: torch.Tensor = file.get_tensor(stored)
        return tensor


def stored_as(part: Any, precision: FloverPrecision, group: int) -> Any:
    """Convert a part of a decoder's weights to the types that it is stored in.

    Args:
        part: Part of `DecoderWeights`, or all of it.
        precision: Precision of the decoder. With int8 and int4 the weights of linear layers become integers, those of
            the head 8 bits in either case, and everything else bfloat16. Routers are float32 in all of them.
        group: Number of inputs in a group of int4 weights.
    """
    match part:
        case Quantized():
            return part
        case torch.Tensor():
            return part.to(torch.float32 if precision == "fp32" else torch.bfloat16)
        case tuple():
            return tuple(stored_as(each, precision, group) for each in part)
        case Dense() if precision in INTEGERS and isinstance(part.weight, torch.Tensor):
            weight = quantize(part.weight, INTEGERS[precision], group)
            return Dense(weight, stored_as(part.bias, precision, group))
        case ExpertWeights():
            up, down = (stored_as(each, precision, group) for each in (part.up, part.down))
            return ExpertWeights(part.router.float(), up, down)
        case DecoderWeights():
            converted = {field.name: stored_as(getattr(part, field.name), precision, group) for field in fields(part)}
            return DecoderWeights(**converted | {"head": stored_head(part.head, part.tokens, precision, group)})
        case _ if is_dataclass(part) and not isinstance(part, type):
            return replace(
                part, **{field.name: stored_as(getattr(part, field.name), precision, group) for field in fields(part)}
            )
    return part


def stored_head(head: Dense | None, tokens: torch.Tensor, precision: FloverPrecision, group: int) -> Dense | None:
    """Convert the head, which has 8 bits where other layers have 4; a tied one is stored only as integers.

    Args:
        head: The head; None: its weight is `tokens`.
        tokens: Token embeddings.
        precision: Precision of the decoder.
        group: Number of inputs in a group of int4 weights.
    """
    if precision not in INTEGERS:
        stored: Dense | None = stored_as(head, precision, group)
        return stored
    converted: Dense = stored_as(head or Dense(tokens, None), "int8", group)
    return converted


def write_weights(
    state: Mapping[str, Any], form: DecoderForm, path: Path, precision: FloverPrecision, group: int, *,
    tied: bool, progress: Progress = lambda _: None,
) -> None:  # fmt: skip
    """Write the weights of a decoder, with no more in memory than one layer, or the head, of the source.

    Args:
        state: Weights of the source by name, see `SourceTensors`.
        form: Architecture of the decoder.
        path: File to write.
        precision: Precision of the decoder.
        group: Number of inputs in a group of int4 weights.
        tied: Whether the head shares the weight of the token embeddings.
        progress: Called with the share that is done, 0 to 1.

    Raises:
        InvalidArgument: A weight is missing.
    """
    with WeightsWriter(path) as file:
        for number, (name, part) in enumerate(converted_parts(state, form, tied=tied)):
            if name == "tokens" and tied and precision in INTEGERS:
                _write(file, "head", stored_head(None, part, precision, group))
            if name == "head" and part is not None:
                part = stored_head(part, part.weight, precision, group)
            _write(file, name, stored_as(part, precision, group))
            progress((number + 1) / (form.layers + 4))


def _write(file: WeightsWriter, name: str, part: Any) -> None:
    for full_name, tensor in named_tensors(part, name):
        file.write(full_name, tensor)
