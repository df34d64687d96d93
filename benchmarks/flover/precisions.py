"""Decode steps by precision: speed, and share of the memory's bandwidth.

Run `python -m benchmarks.flover.precisions [--model llama] [--json FILE]`; it takes less than a minute with GPT-2's
size. Runners of random weights of each precision alternate in one process, without a server. Builds verify the quality.
"""

from __future__ import annotations

import os
import time
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import typer
from transformers import GPT2Config, LlamaConfig

from benchmarks.report import Claim, Report, progress
from tidal.flover.architectures import form_of
from tidal.flover.form import DecoderForm
from tidal.flover.manifest import FloverPrecision
from tidal.flover.models.quantized import Quantized
from tidal.flover.models.weights import Affine, DecoderWeights, Dense, LayerWeights
from tidal.flover.native.library import large_pages
from tidal.flover.native.tuning import measure_kernels
from tidal.flover.runner import FloverRunner
from tidal_builders.flover.converting import stored_as, stored_head

PRECISIONS: tuple[FloverPrecision, ...] = ("bf16", "int8", "int4")
STREAMS = (1, 8, 32)
_GROUP, _LENGTH, _POSITION = 64, 256, 127
_ROUNDS = 12
# Goals: share of the bandwidth with one stream, and speed relative to bf16.
_SHARES = {"bf16": 0.8, "int8": 0.7, "int4": 0.5}
_FASTER = {("int4", 1): 1.8}


def random_weights(form: DecoderForm, precision: FloverPrecision) -> DecoderWeights:
    """Return random weights, stored as a precision, made layer by layer.

    Args:
        form: Architecture of the decoder; only GPT-2 and Llama.
        precision: Precision to store.
    """
    draw, llama = torch.Generator().manual_seed(0), form.norm == "rms"

    def dense(outputs: int, inputs: int) -> Dense:
        return Dense(torch.randn(outputs, inputs, generator=draw) * 0.02, None if llama else torch.zeros(outputs))

    def norm() -> Affine:
        return Affine(torch.ones(form.width), None if llama else torch.zeros(form.width))

    def layer() -> LayerWeights:
        queries = form.heads * form.head_dim
        made = LayerWeights(
            attention_norm=norm(),
            qkv=dense(queries + 2 * form.kv_width, form.width),
            query_norm=None,
            key_norm=None,
            output=dense(form.width, queries),
            feed_norm=norm(),
            up=dense((1 + form.gated) * form.inner, form.width),
            down=dense(form.width, form.inner),
        )
        stored: LayerWeights = stored_as(made, precision, _GROUP)
        return stored

    tokens = torch.randn(form.vocabulary, form.width, generator=draw) * 0.02
    return DecoderWeights(
        tokens=tokens.bfloat16(),
        positions=None if llama else torch.zeros(form.positions, form.width, dtype=torch.bfloat16),
        layers=tuple(layer() for _ in range(form.layers)),
        final_norm=stored_as(norm(), precision, _GROUP),
        head=stored_head(Dense(tokens, None), tokens, precision, _GROUP),
    )


def weight_bytes(weights: DecoderWeights) -> int:
    """Return the bytes of weights that a decode step reads: those of all linear layers."""
    denses = [getattr(layer, field.name) for layer in weights.layers for field in fields(layer)]
    found = 0
    for each in (*denses, weights.head):
        if isinstance(each, Dense):
            weight = each.weight
            found += weight.values.nbytes + weight.scales.nbytes if isinstance(weight, Quantized) else weight.nbytes
    return found


def read_bandwidth(count: int) -> float:
    """Return the highest speed in bytes per second at which all threads read a buffer of `count` bytes."""
    buffer = large_pages(torch.empty(count // 8, dtype=torch.int64)).fill_(1)
    best = float("inf")
    for _ in range(_ROUNDS):
        for read in (buffer.sum, buffer.amax, buffer.view(torch.float32).amax):
            begin = time.perf_counter()
            read()
            best = min(best, time.perf_counter() - begin)
    return count / best


def measure_steps(runners: dict[FloverPrecision, FloverRunner]) -> dict[tuple[FloverPrecision, int], float]:
    """Time decode steps in alternation, in seconds: the shortest of each precision and number of streams."""
    seconds: dict[tuple[FloverPrecision, int], float] = {}
    for runner in runners.values():
        runner.commit(dict.fromkeys(range(runner.slots), _POSITION))
    for _ in range(_ROUNDS):
        for streams in STREAMS:
            tokens, positions = np.zeros(streams, np.int64), np.full(streams, _POSITION)
            for precision, runner in runners.items():
                for _ in range(3 if streams == 1 else 1):
                    begin = time.perf_counter()
                    runner.decode(0, streams, tokens, positions)
                    taken = time.perf_counter() - begin
                    seconds[precision, streams] = min(taken, seconds.get((precision, streams), taken))
    return seconds


def make_claims(seconds: dict[tuple[FloverPrecision, int], float], shares: dict[FloverPrecision, float]) -> list[Claim]:
    """Return the claims of a run.

    Args:
        seconds: Time of a step by precision and number of streams.
        shares: Share of the bandwidth with one stream, by precision.
    """
    claims = [
        Claim(f"bandwidth_share[{name},1]", f">= {_SHARES[name]}", share, note="bytes of weights, keys and values")
        for name, share in shares.items()
    ]
    for name in PRECISIONS[1:]:
        for streams in STREAMS:
            goal = _FASTER.get((name, streams), 1.0)
            ratio = seconds["bf16", streams] / seconds[name, streams]
            claims.append(Claim(f"{name}_vs_bf16[{streams}]", f">= {goal}", ratio, note="time of a step of bf16"))
    return claims


def main(
    model: Annotated[Literal["gpt2", "llama"], typer.Option(help="GPT-2 small's size, or a Llama of 362 M.")] = "gpt2",
    threads: Annotated[int | None, typer.Option(help="CPU threads; default: all cores.")] = None,
    json: Annotated[Path | None, typer.Option(help="File for the results; tables are written next to it.")] = None,
) -> None:
    """Compare decode steps of bf16, int8 and int4 weights on this machine."""
    count = threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(count)
    report = Report("precisions", quick=False)
    kernels = measure_kernels(count)
    if kernels is None:
        raise typer.BadParameter("the native kernels are not built: python -m tidal.flover.native.build")
    form = _form(model)
    runners, sizes = dict[FloverPrecision, FloverRunner](), dict[FloverPrecision, int]()
    for precision in PRECISIONS:
        progress(f"{precision} weights")
        weights = random_weights(form, precision)
        sizes[precision] = weight_bytes(weights)
        runners[precision] = FloverRunner(form, weights, slots=max(STREAMS), max_length=_LENGTH, tiling=kernels)
        del weights
    progress("decode steps")
    seconds, bandwidth = measure_steps(runners), read_bandwidth(sizes["bf16"])
    held = (_POSITION + 1) * form.layers * 2 * form.kv_width * 2
    shares = {name: (sizes[name] + held) / seconds[name, 1] / bandwidth for name in PRECISIONS}
    report.measured |= {
        "model": model,
        "threads": count,
        "kernels": kernels.model_dump(),
        "bandwidth, GB/s": bandwidth / 1e9,
        "weights, bytes": sizes,
        "step, ms": {f"{name},{streams}": value * 1e3 for (name, streams), value in seconds.items()},
    }
    title = f"{model}: decode steps with {_POSITION + 1} tokens per slot, {count} threads; {kernels}"
    columns = ["weights", "MB", *(f"ms, {streams}" for streams in STREAMS), "share of bandwidth"]
    rows = [
        [
            *(name, f"{sizes[name] / 1e6:.0f}", *(f"{seconds[name, streams] * 1e3:.2f}" for streams in STREAMS)),
            f"{shares[name]:.0%} of {bandwidth / 1e9:.1f} GB/s",
        ]
        for name in PRECISIONS
    ]
    report.add_table(title, columns, rows)
    report.claims += make_claims(seconds, shares)
    report.finish(json)


def _form(model: str) -> DecoderForm:
    if model == "gpt2":
        return form_of(GPT2Config())
    config: Any = LlamaConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, num_key_value_heads=4, intermediate_size=3072,
        vocab_size=32_000, max_position_embeddings=2048,
    )  # fmt: skip
    return form_of(config)


if __name__ == "__main__":
    typer.run(main)
