"""TensorRT: a plan of BERT-base in fp16 with profiles of several lengths, its answers and its latency."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.gpu.encoder import batch_of, make_encoder, shapes_of, size_of
from benchmarks.gpu.recording import Record, Setting, run_ms
from tidal.engines import Artifact, PlanOptions, compile_engine, engine_file, open_engines, specialise_engine

LENGTHS, DRY_LENGTHS = (32, 128, 512), (16, 64)
MAX_BATCH = 8


def measure(setting: Setting, record: Record) -> None:
    """Build a plan, compare its answers with float32 on the CPU, and measure single queries by length."""
    size = size_of(setting)
    folder = setting.work("plan")
    compile_engine(
        "tensorrt", make_encoder(size), folder, precision="fp16", shapes=shapes_of(size, MAX_BATCH, None),
        example=batch_of(size, [5, 7, 3]),
    )  # fmt: skip
    lengths: tuple[int, ...] = setting.choose(LENGTHS, DRY_LENGTHS)
    shapes = [shapes_of(size, MAX_BATCH, length) for length in lengths]
    plans = specialise_engine("tensorrt", folder / engine_file("tensorrt"), shapes, PlanOptions(plans="shared"))
    truth = make_encoder(size)
    found: dict[str, dict[str, float]] = {}
    for length, own, plan in zip(lengths, shapes, plans, strict=True):
        with record.case(f"{length} tokens"):
            engine = open_engines(Artifact("tensorrt", plan, "fp16", own, "gpu"), threads=1)[0]
            batch = batch_of(size, [length, length // 2], length)
            with torch.inference_mode():
                expected = truth(**{name: torch.from_numpy(each) for name, each in batch.items()})["logits"].numpy()
            error = np.abs(engine.run(batch)["logits"] - expected).max() / expected.std()
            single = batch_of(size, [length])
            taken = run_ms(setting, engine, single, seconds=setting.choose(0.4, 0.02))
            found[str(length)] = {"ms": taken, "error": float(error)}
            record.put("by length", found)
            rows = [[at, f"{cells['ms']:.3f}", f"{cells['error']:.2e}"] for at, cells in found.items()]
            record.table("BERT-base fp16 as a TensorRT plan, one query", ["tokens", "ms", "error"], rows)
