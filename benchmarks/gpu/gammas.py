"""ViT-B/16: throughput by gamma, the number of tokens that each layer merges or gets, in float32 and fp16."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks.gpu.recording import Record, Setting, run_ms
from tidal.device import DeviceKind
from tidal.engines import Artifact, Engine, Precision, compile_engine, engine_file, open_engines
from tidal.engines.base import Dim
from tidal.otas.manifest import FEATURES, PIXELS, PROMPTS, ImageConfig
from tidal_builders.otas.transformer import TransformerModel
from tidal_builders.otas.vit import VitConfig

GAMMAS, DRY_GAMMAS = (-15, -10, -5, 0, 4, 8), (-2, 0, 2)
BATCH, DRY_BATCH = 64, 2


def vit_config(setting: Setting) -> VitConfig:
    """Configuration of ViT-B/16, or of a tiny transformer."""
    side = setting.choose(224, 16)
    image = ImageConfig(
        channels=3, height=side, width=side, crop_pct=1.0, crop_mode="center", interpolation="bicubic",
        mean=(0.5,) * 3, std=(0.5,) * 3,
    )  # fmt: skip
    sizes = setting.choose(
        {"width": 768, "layers": 12, "heads": 12, "inner": 3072, "patch": (16, 16)},
        {"width": 8, "layers": 2, "heads": 2, "inner": 16, "patch": (4, 4)},
    )
    return VitConfig(architecture="random", image=image, **sizes)


def measure(setting: Setting, record: Record) -> None:
    """Measure images/s of the largest batch; claims `gpu_otas_throughput[-15/0]`, in float32, which OTAS serves."""
    gammas: tuple[int, ...] = setting.choose(GAMMAS, DRY_GAMMAS)
    batch = setting.choose(BATCH, DRY_BATCH)
    found: dict[str, dict[str, float]] = {}
    for precision, gamma in _cases(gammas, dry_run=setting.dry_run):
        with record.case(f"gamma {gamma}, {precision}"):
            engine = open_gamma(setting, gamma, precision)
            taken = run_ms(setting, engine, batch_for(setting, gamma, batch), seconds=setting.choose(0.5, 0.02))
            found.setdefault(precision, {})[str(gamma)] = batch / taken * 1e3
            record.put("images/s", found)
        own = found.get("fp32", {})
        if {"-15", "0"} <= own.keys():
            record.claim("gpu_otas_throughput[-15/0]", own["-15"] / own["0"])
        rows = [
            [str(gamma), *(f"{cells[str(gamma)]:.0f}" if str(gamma) in cells else "-" for cells in found.values())]
            for gamma in gammas
        ]
        record.table(f"ViT-B/16, batches of {batch}, images/s", ["gamma", *found], rows)


def _cases(gammas: Sequence[int], *, dry_run: bool) -> list[tuple[Precision, int]]:
    """Cases in the order of their value: the extremes of the claim, the same in fp16, then the others in float32."""
    first = [0, min(gammas)]
    others = [gamma for gamma in gammas if gamma not in first]
    halves = first[1:] if dry_run else first
    return [*(("fp32", g) for g in first), *(("fp16", g) for g in halves), *(("fp32", g) for g in others)]


class Gamma(nn.Module):
    """The transformer at one gamma, with images in float32 at every precision of the weights."""

    def __init__(self, model: TransformerModel, gamma: int) -> None:
        super().__init__()
        self.model, self.gamma = model, gamma

    def forward(self, pixel_values: torch.Tensor, prompts: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """See `TransformerModel.forward`."""
        dtype = self.model.patch_embed.proj.weight.dtype
        own = None if prompts is None else prompts.to(dtype)
        return {FEATURES: self.model(self.gamma, pixel_values.to(dtype), own)}


def open_gamma(setting: Setting, gamma: int, precision: Precision, device: DeviceKind | None = None) -> Engine:
    """Open the transformer at a gamma as Tidal's torch engine, on the device of the setting unless one is given."""
    config, batch = vit_config(setting), setting.choose(BATCH, DRY_BATCH)
    folder = setting.work(f"vit-{gamma}-{precision}")
    path: Path = folder / engine_file("torch")
    shapes: dict[str, tuple[Dim, ...]] = {PIXELS: ((1, batch), *config.image.shape)}
    if gamma > 0:
        shapes[PROMPTS] = ((1, batch), config.layers, gamma, config.width)
    if not path.exists():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = TransformerModel(config).eval().requires_grad_(False)
            for parameter in model.parameters():
                # Tokens that differ, so that merging has something to choose.
                parameter.add_(torch.randn_like(parameter) * 0.02)
        compile_engine(
            "torch",
            Gamma(model, gamma),
            folder,
            precision=precision,
            shapes=shapes,
            example=batch_for(setting, gamma, 2),
        )
    return open_engines(Artifact("torch", path, precision, shapes, device or setting.device), threads=1)[0]


def batch_for(setting: Setting, gamma: int, batch: int) -> dict[str, npt.NDArray[np.float32]]:
    """Random images, with prompts if gamma is above 0."""
    config, draw = vit_config(setting), np.random.default_rng(0)
    inputs = {PIXELS: draw.standard_normal((batch, *config.image.shape), np.float32)}
    if gamma > 0:
        inputs[PROMPTS] = draw.standard_normal((batch, config.layers, gamma, config.width), np.float32)
    return inputs
