"""The file of a decoder's weights: safetensors, written tensor by tensor."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import fields, is_dataclass
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Any

import torch

from tidal.errors import InvalidArgument, Unsupported
from tidal.flover.form import DecoderForm
from tidal.flover.models.quantized import Quantized
from tidal.flover.models.weights import Affine, DecoderWeights, Dense, ExpertWeights, LayerWeights
from tidal_client.extras import install_command

_NAMES = {torch.int64: "I64", torch.float32: "F32", torch.bfloat16: "BF16", torch.uint8: "U8"}


class WeightsWriter:
    """Writes a safetensors file without having all of its tensors in memory; a context manager.

    Tensors are collected on disk by the size of their numbers, since a file has those of larger numbers first.

    Args:
        path: File to write.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tensors: dict[str, torch.Tensor] = {}  # on the device `meta`, which has no memory
        self._open = ExitStack()
        self._parts: dict[int, IO[bytes]] = {}

    def __enter__(self) -> WeightsWriter:
        for size in sorted({dtype.itemsize for dtype in _NAMES}, reverse=True):
            self._parts[size] = self._open.enter_context(TemporaryFile(dir=self._path.parent))
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        with self._open:
            if kind is None:
                self._finish()

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Add a tensor."""
        data = tensor.detach().contiguous()
        self._tensors[name] = data.to("meta")
        self._parts[data.itemsize].write(data.flatten().view(torch.uint8).numpy().data)

    def _finish(self) -> None:
        header, at = {}, 0
        for size in self._parts:
            for name, tensor in self._tensors.items():
                if tensor.itemsize == size:
                    offsets = [at, at + tensor.nbytes]
                    header[name] = {"dtype": _NAMES[tensor.dtype], "shape": [*tensor.shape], "data_offsets": offsets}
                    at += tensor.nbytes
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with self._path.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for part in self._parts.values():
                part.seek(0)
                shutil.copyfileobj(part, file, 1 << 20)


def load_weights(path: Path, form: DecoderForm, device: torch.device | None = None) -> DecoderWeights:
    """Read weights written by `WeightsWriter`, in the types of the file.

    Args:
        path: The safetensors file.
        form: Architecture of the decoder.
        device: Device to load to; None: the CPU.

    Raises:
        Unsupported: safetensors is not installed.
        InvalidArgument: A weight of the architecture is missing.
    """
    try:
        from safetensors.torch import load_file
    except ImportError:
        raise Unsupported(
            f"loading a decoder requires safetensors, which is not installed: {install_command('build')}"
        ) from None
    tensors = load_file(path, device=str(device or "cpu"))

    def affine(name: str) -> Affine:
        return Affine(tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))

    def dense(name: str) -> Dense:
        bias = tensors.get(f"{name}.bias")
        if (values := tensors.get(f"{name}.weight.values")) is None:
            return Dense(tensors[f"{name}.weight"], bias)
        return Dense(Quantized(values, tensors[f"{name}.weight.scales"], tensors[f"{name}.weight.inputs"]), bias)

    def optional(name: str) -> Affine | None:
        return affine(name) if f"{name}.weight" in tensors else None

    def experts(prefix: str, count: int) -> ExpertWeights:
        up, down = (tuple(dense(f"{prefix}.{name}.{each}") for each in range(count)) for name in ("up", "down"))
        return ExpertWeights(tensors[f"{prefix}.router"], up, down)

    def layer(number: int) -> LayerWeights:
        prefix, mixture = f"layers.{number}", form.layer_experts(number)
        before, after = form.norms != "after", form.norms != "before"
        return LayerWeights(
            attention_norm=affine(f"{prefix}.attention_norm") if before else None,
            qkv=dense(f"{prefix}.qkv"),
            query_norm=optional(f"{prefix}.query_norm"),
            key_norm=optional(f"{prefix}.key_norm"),
            output=dense(f"{prefix}.output"),
            feed_norm=optional(f"{prefix}.feed_norm"),
            up=None if mixture else dense(f"{prefix}.up"),
            down=None if mixture else dense(f"{prefix}.down"),
            attention_after=affine(f"{prefix}.attention_after") if after else None,
            feed_after=affine(f"{prefix}.feed_after") if after else None,
            experts=None if mixture is None else experts(f"{prefix}.experts", len(mixture.widths)),
        )

    try:
        return DecoderWeights(
            tokens=tensors["tokens"],
            positions=tensors.get("positions"),
            layers=tuple(layer(number) for number in range(form.layers)),
            final_norm=affine("final_norm"),
            head=dense("head") if {"head.weight", "head.weight.values"} & tensors.keys() else None,
        )
    except KeyError as error:
        raise InvalidArgument(f"{path} has no weight {error}, which the model's architecture requires") from None


def named_tensors(part: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor with its dotted name."""
    if isinstance(part, torch.Tensor):
        yield name, part
    elif isinstance(part, tuple):
        for number, each in enumerate(part):
            yield from named_tensors(each, f"{name}.{number}")
    elif is_dataclass(part):
        for field in fields(part):
            yield from named_tensors(getattr(part, field.name), f"{name}.{field.name}".lstrip("."))
