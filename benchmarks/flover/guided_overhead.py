"""What guiding costs: texts within a grammar and free ones, in alternation, in one process without a server."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import GPT2Config

from benchmarks.flover.precisions import random_weights
from benchmarks.flover.prompts import TimedEngine
from benchmarks.flover.source import write_tokenizer
from benchmarks.report import Claim, Report, progress
from tidal.flover.architectures import form_of
from tidal.flover.guided import GuidedConstraint, GuidedGrammars, MaskWorker
from tidal.flover.native.tuning import measure_kernels
from tidal.flover.policies import ProfiledCosts
from tidal.flover.runner import FloverRunner
from tidal.flover.sampling import SamplingParams
from tidal.options import parse_options
from tidal_builders.flover.profiling import measure_profile

STREAMS = (1, 8, 32)
_LENGTH, _PROMPT = 256, 32
# A list so long that no text ends: strings, numbers and nested values alternate in what the grammar allows.
_SCHEMA = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "size": {"type": "integer"}, "tags": {"type": "array"}},
        "required": ["name", "size", "tags"],
        "additionalProperties": False,
    },
}


def add_overhead(report: Report, *, quick: bool) -> None:
    """Measure it and add table and claims to a report.

    Args:
        report: The report.
        quick: Whether to measure 3 layers and one round.
    """
    threads, rounds, tokens = len(os.sched_getaffinity(0)), 2 if quick else 7, 32 if quick else 96
    torch.set_num_threads(threads)
    form = form_of(GPT2Config(n_positions=_LENGTH, n_layer=3 if quick else 12))
    kernels = measure_kernels(threads)
    runner = FloverRunner(
        form, random_weights(form, "bf16"), slots=max(STREAMS), max_length=_LENGTH, tiling=kernels
    )  # fmt: skip
    progress("profile")
    profile = measure_profile(runner, threads=threads, seconds=1 if quick else 10, progress=lambda _: None)
    costs = ProfiledCosts(profile.step, profile.chunk, mixed=runner.runs_mixed)
    rows = []
    with _grammars(form.vocabulary) as (grammars, masks):
        options = parse_options({"guided_json": json.dumps(_SCHEMA)})

        def seconds(streams: int, seed: int, *, guided: bool) -> float:
            engine, draw = TimedEngine(runner, costs, reuse=False), np.random.default_rng(seed)
            for number in range(streams):
                guide = None
                if guided:
                    matcher = grammars.matcher(options)
                    assert matcher is not None
                    guide = GuidedConstraint(matcher, form.vocabulary, frozenset(), masks)
                prompt = draw.integers(0, form.vocabulary, _PROMPT).tolist()
                engine.add(prompt, tokens, SamplingParams(seed=seed + number), guide)
            began = time.perf_counter()
            engine.finish()
            return time.perf_counter() - began

        for streams in STREAMS:
            progress(f"guided and free texts, {streams} streams")
            ratios = []
            for number in range(rounds + 1):
                order = (True, False) if number % 2 else (False, True)
                taken = {guided: seconds(streams, 100 * number, guided=guided) for guided in order}
                if number:  # the first one warms up
                    ratios.append(taken[True] / taken[False] - 1)
            found = float(np.median(ratios))
            spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
            rows.append([str(streams), f"{found:.1%}", spread])
            report.measured[f"overhead, {streams}"] = ratios
            report.claims.append(Claim(f"guided_overhead[{streams}]", "<= 0.1", found, note=f"rounds {spread}"))
    title = f"time of guided texts over that of free ones, less 1: {form.layers} layers, bf16, {tokens} tokens each"
    report.add_table(title, ["streams", "added", "rounds"], rows)


@contextmanager
def _grammars(vocabulary: int) -> Iterator[tuple[GuidedGrammars, MaskWorker]]:
    """Grammars for as many tokens, and the thread that computes masks."""
    masks = MaskWorker()
    thread = threading.Thread(target=masks.run, daemon=True)
    thread.start()
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder), vocabulary)
        tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    end = tokenizer.token_to_id("<end>")
    assert end is not None
    try:
        yield GuidedGrammars(tokenizer, vocabulary, frozenset({end})), masks
    finally:
        masks.close()
        thread.join()
