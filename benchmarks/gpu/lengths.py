"""BERT-base in fp16 by input length: an engine per length, one dynamic engine, and kernels of variable length."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.encoder import (
    EncoderModule,
    batch_of,
    make_encoder,
    open_encoder,
    size_of,
    tweet_like_lengths,
)
from benchmarks.gpu.machine import missing
from benchmarks.gpu.recording import Record, Setting, median_ms
from tidal.engines import Engine, Precision

PRECISION: Precision = "fp16"
LENGTHS, DRY_LENGTHS = (32, 64, 128, 256, 384, 512), (16, 64)
MAX_BATCH = 8
FORMS = ("static", "dynamic", "variable length")


def measure(setting: Setting, record: Record) -> None:
    """Measure single queries by length, then batches of mixed lengths; claims `gpu_static_vs_dynamic`."""
    lengths: tuple[int, ...] = setting.choose(LENGTHS, DRY_LENGTHS)
    seconds = setting.choose(0.4, 0.02)
    record.put("lengths", list(lengths))
    latency: dict[str, dict[str, float]] = {}
    record.put("single query, ms", latency)
    static: dict[int, Engine] = {}
    dynamic: list[Engine] = []
    with record.case("static"):
        static = {length: open_encoder(setting, PRECISION, length=length) for length in lengths}
        _single(
            setting, record, latency, "static", lengths, lambda length: _run(setting, static[length], length), seconds
        )
    with record.case("dynamic"):
        record.put("dynamic engine is compiled", not missing(("triton",)) and shutil.which("gcc") is not None)
        dynamic = [open_encoder(setting, PRECISION, length=None)]
        _single(setting, record, latency, "dynamic", lengths, lambda length: _run(setting, dynamic[0], length), seconds)
    packed = Packed(setting)
    with record.case("variable length"):
        _single(setting, record, latency, "variable length", lengths, lambda length: packed.call([length]), seconds)
    if "static" in latency and "dynamic" in latency:
        ratios = [latency["static"][str(length)] / latency["dynamic"][str(length)] for length in lengths]
        record.put("static / dynamic", ratios)
        record.claim("gpu_static_vs_dynamic", statistics.median(ratios))
    _mixed(setting, record, static, dynamic, packed)


class Packed:
    """Runs rows without padding, between arrays on the host as an engine does."""

    def __init__(self, setting: Setting) -> None:
        self._size, self._device = size_of(setting), setting.torch_device
        # torch has no kernel of variable length for halves on a CPU.
        dtype = setting.choose(torch.float16, torch.float32)
        self.module: EncoderModule = make_encoder(self._size).to(self._device, dtype)

    def call(self, lengths: Sequence[int]) -> Callable[[], Any]:
        """Return a call that runs rows of these lengths."""
        draw = np.random.default_rng(0)
        ids = torch.from_numpy(draw.integers(0, self._size.vocabulary, sum(lengths)))
        positions = torch.from_numpy(np.concatenate([np.arange(length) for length in lengths]))
        offsets = torch.from_numpy(np.cumsum([0, *lengths]))
        longest = max(lengths)

        def run() -> Any:
            with torch.no_grad():
                inputs = [each.to(self._device, non_blocking=True) for each in (ids, positions, offsets)]
                return self.module.packed(inputs[0], inputs[1], inputs[2], longest).float().cpu()

        return run


def _run(setting: Setting, engine: Engine, length: int) -> Callable[[], Any]:
    batch = batch_of(size_of(setting), [length])
    return lambda: engine.run(batch)


def _single(
    setting: Setting, record: Record, latency: dict[str, dict[str, float]], form: str, lengths: Sequence[int],
    call: Callable[[int], Callable[[], Any]], seconds: float,
) -> None:  # fmt: skip
    latency[form] = {}
    for length in lengths:
        latency[form][str(length)] = median_ms(call(length), setting.torch_device, seconds=seconds)
    rows = [[str(length), *(f"{latency[f][str(length)]:.3f}" for f in latency)] for length in lengths]
    record.table("BERT-base fp16, one query, ms by length", ["tokens", *latency], rows)


def _mixed(setting: Setting, record: Record, static: dict[int, Engine], dynamic: list[Engine], packed: Packed) -> None:
    """Measure queries of mixed lengths that all wait: each form batches them as suits it best."""
    size = size_of(setting)
    wanted = tweet_like_lengths(setting.choose(64, 8), size.longest, seed=1)
    ascending = sorted(wanted)
    chunks = [ascending[start : start + MAX_BATCH] for start in range(0, len(ascending), MAX_BATCH)]
    calls: dict[str, Callable[[], Any]] = {}
    if static:
        bins = sorted(static)
        by_bin: dict[int, list[int]] = {}
        for length in wanted:
            by_bin.setdefault(next(each for each in bins if each >= length), []).append(length)
        batches = [
            (static[own], batch_of(size, rows[start : start + MAX_BATCH], own))
            for own, rows in by_bin.items()
            for start in range(0, len(rows), MAX_BATCH)
        ]
        calls["static"] = lambda: [engine.run(batch) for engine, batch in batches]
    if dynamic:
        padded = [batch_of(size, chunk) for chunk in chunks]
        calls["dynamic"] = lambda: [dynamic[0].run(batch) for batch in padded]
    runs = [packed.call(chunk) for chunk in chunks]
    calls["variable length, batches"] = lambda: [run() for run in runs]
    calls["variable length, one pass"] = packed.call(wanted)
    found: dict[str, float] = {}
    for form, call in calls.items():
        with record.case(f"mixed lengths, {form}"):
            taken = median_ms(call, setting.torch_device, seconds=setting.choose(0.5, 0.02))
            found[form] = len(wanted) / taken * 1e3
            record.put("mixed lengths, queries/s", found)
            rows = [[name, f"{value:.0f}"] for name, value in found.items()]
            record.table(f"BERT-base fp16, {len(wanted)} waiting queries of mixed lengths", ["form", "queries/s"], rows)
