"""Tokens per second with and without a draft model, at several numbers of streams.

Run `python -m benchmarks.flover.draft_model [--quick] [--json FILE]`; it takes some minutes. Engines with and without
drafts alternate in one process, without a server, and their tokens are compared. Decoders:

- The demo's writer, trained, padded to the layers and widths of GPT-2 small by weights of 0: it computes what the
  writer computes, and takes the time of a model of 85 million parameters. Its draft model is the writer in int4, so the
  acceptance is that of two trained models which differ, and the cost is that of a small one.
- GPT-2 small's size with random weights, and a random draft model of two layers: no draft is accepted.
"""

from __future__ import annotations

import logging
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from transformers import AutoConfig, GPT2Config

from benchmarks.flover.precisions import random_weights
from benchmarks.flover.speculation import STREAMS, WRITER, Case, measure, random_cases, trained_writer, writer_cases
from benchmarks.report import Claim, Report, progress
from tidal.flover.architectures import form_of
from tidal.flover.engine.draft_model import DraftModel
from tidal.flover.engine.model_drafts import ModelDrafts
from tidal.flover.engine.runners import SharedRunner
from tidal.flover.engine.speculation import Speculation
from tidal.flover.form import DecoderForm
from tidal.flover.manifest import FloverPrecision
from tidal.flover.models.weights import Affine, DecoderWeights, Dense, LayerWeights
from tidal.flover.models.weights_file import load_weights
from tidal.flover.native.tuning import measure_kernels
from tidal.flover.policies import DraftingPolicy, ProfiledCosts, SpeculationPolicy
from tidal.flover.policies.speculation import CheckedDrafts
from tidal.flover.runner import FloverRunner
from tidal_builders.flover.converting import SourceTensors, write_weights
from tidal_builders.flover.profiling import measure_profile

# The writer was trained on sequences of this length.
_LENGTH = 256
_WIDTH, _LAYERS, _INNER = 768, 12, 2048
# Most tokens of a draft, and acceptance before the first one.
_TOKENS, _ACCEPTANCE = 5, 0.5


class CountingSpeculation(Speculation):
    """Drafts whose numbers are summed.

    Attributes:
        checked: Drafted tokens of the draft model that were checked.
        gained: Tokens gained by them.
    """

    checked = gained = 0

    def passed(self, seconds: float) -> list[CheckedDrafts]:
        """See `Speculation`."""
        found = super().passed(seconds)
        for each in found:
            if each.source == "model":
                self.checked += each.checked
                self.gained += each.gained
        return found


def writer_weights(form: DecoderForm, precision: FloverPrecision) -> DecoderWeights:
    """Return the demo's writer in a precision."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "weights.safetensors"
        tied = bool(AutoConfig.from_pretrained(WRITER).tie_word_embeddings)
        write_weights(SourceTensors(WRITER, form.family), form, file, precision, 32, tied=tied)
        return load_weights(file, form)


def padded(
    form: DecoderForm, weights: DecoderWeights, *, width: int, layers: int, inner: int
) -> tuple[DecoderForm, DecoderWeights]:
    """Return a larger decoder that computes the same: further components, heads and layers are 0.

    Args:
        form: Architecture of a Llama with as many heads of keys as of queries.
        weights: Its weights, floating-point numbers, with a tied head.
        width: Width of the larger decoder, a multiple of the heads' size.
        layers: Number of its layers.
        inner: Width of its feed-forward part.
    """
    heads = width // form.head_dim
    # The mean square of a norm is taken over more components.
    scale = math.sqrt(form.width / width)

    def wide(weight: torch.Tensor, *sizes: int) -> torch.Tensor:
        found = weight.new_zeros(sizes)
        found[tuple(slice(0, size) for size in weight.shape)] = weight
        return found

    def norm(affine: Affine | None) -> Affine:
        assert affine is not None
        return Affine(wide(affine.weight.float() * scale, width).to(affine.weight.dtype), None)

    def dense(part: Dense | None, outputs: int, inputs: int, parts: int = 1) -> Dense:
        assert part is not None
        assert isinstance(part.weight, torch.Tensor)
        return Dense(torch.cat([wide(each, outputs, inputs) for each in part.weight.chunk(parts)]), None)

    def zero(part: Dense | None) -> Dense:
        assert part is not None
        assert isinstance(part.weight, torch.Tensor)
        return Dense(torch.zeros_like(part.weight), None)

    def layer(number: int) -> LayerWeights:
        source = weights.layers[min(number, form.layers - 1)]
        made = LayerWeights(
            attention_norm=norm(source.attention_norm),
            qkv=dense(source.qkv, width, width, 3),
            query_norm=None,
            key_norm=None,
            output=dense(source.output, width, width),
            feed_norm=norm(source.feed_norm),
            up=dense(source.up, inner, width, 2),
            down=dense(source.down, width, inner),
        )
        if number < form.layers:
            return made
        return replace(made, output=zero(made.output), down=zero(made.down))

    larger = form.model_copy(
        update={
            "width": width, "heads": heads, "kv_heads": heads, "layers": layers, "inner": inner,
            "epsilon": form.epsilon * scale**2,
        }
    )  # fmt: skip
    return larger, DecoderWeights(
        tokens=wide(weights.tokens, form.vocabulary, width),
        positions=None,
        layers=tuple(map(layer, range(layers))),
        final_norm=norm(weights.final_norm),
        head=None,
    )


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer layers, tokens and rounds; about a minute.")] = False,
    threads: Annotated[int | None, typer.Option(help="CPU threads; default: all cores.")] = None,
    json: Annotated[Path | None, typer.Option(help="File for the results; tables are written next to it.")] = None,
) -> None:
    """Measure what a draft model gains and costs on this machine."""
    count = threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(count)
    report, kernels = Report("draft_model", quick), measure_kernels(count)
    tokens, rounds, seconds = (64, 2, 1) if quick else (160, 5, 10)
    layers = 4 if quick else _LAYERS
    form, weights = trained_writer()
    large, larger = padded(form, weights, width=_WIDTH, layers=layers, inner=_INNER)
    gpt2 = form_of(GPT2Config(n_positions=_LENGTH, n_layer=layers))
    small = form_of(GPT2Config(n_positions=_LENGTH, n_layer=2, n_embd=256, n_head=4))
    models = [
        ("the writer, trained, padded; draft: the writer in int4", large, larger, form, writer_weights(form, "int4")),
        ("random; draft: random", gpt2, random_weights(gpt2, "bf16"), small, random_weights(small, "bf16")),
    ]
    for title, form, weights, own, drafting in models:
        runners, costs = [], []
        for each, its in ((form, weights), (own, drafting)):
            runner = FloverRunner(each, its, slots=max(STREAMS), max_length=_LENGTH, tiling=kernels)
            progress("profile")
            profile = measure_profile(runner, threads=count, seconds=seconds, progress=lambda _: None)
            runners.append(runner)
            costs.append(ProfiledCosts(profile.step, profile.chunk, mixed=True))
        cases = writer_cases if form is large else random_cases
        rows = [
            measured_row(report, title, runners, costs, case, streams, rounds)
            for case in cases(runners[0], form.vocabulary, tokens)
            for streams in STREAMS
        ]
        columns = ["streams, texts", "tokens/s without", "with drafts", "ratio", "spread", "accepted", "equal texts"]
        report.add_table(title, columns, rows)
    report.finish(json)


def measured_row(
    report: Report, title: str, runners: Sequence[FloverRunner], costs: Sequence[ProfiledCosts], case: Case,
    streams: int, rounds: int,
) -> list[str]:  # fmt: skip
    """Measure a case, add its claim to the report, and return its row of the table.

    Args:
        report: The report.
        title: Name of the models.
        runners: Runners of the decoder and its draft model.
        costs: Durations of their passes.
        case: Prompts and how to generate.
        streams: Number of prompts.
        rounds: Number of rounds.
    """
    progress(f"{case.name}, {streams} streams")
    (runner, drafter), vocabulary = runners, runners[0].form.vocabulary
    model = DraftModel(
        SharedRunner(drafter), max_length=_LENGTH, vocabulary=drafter.form.vocabulary, target_vocabulary=vocabulary
    )
    policy = SpeculationPolicy(costs[0], share=1.0, most_rows=runner.draft_rows)
    drafts = ModelDrafts(
        model, DraftingPolicy(policy, costs[1]), most=_TOKENS, acceptance=_ACCEPTANCE, log=logging.getLogger(__name__)
    )
    speculation = CountingSpeculation(policy, drafts)
    found = measure(runner, costs[0], case, streams, rounds, speculation)
    ratio, name = float(np.median(found.ratios)), f"{streams}, {case.name}"
    share = speculation.gained / speculation.checked if speculation.checked else 0.0
    report.measured[name] = {
        "seconds": {"plain": found.seconds[False], "drafted": found.seconds[True]},
        "equal": found.equal,
        "checked": speculation.checked,
        "gained": speculation.gained,
    }
    spread = f"{min(found.ratios):.2f} to {max(found.ratios):.2f}"
    goal = 1.3 if streams == 1 and case.name.startswith("trained") else 0.97
    report.claims.append(Claim(f"draft_model_gain[{name}]", f">= {goal}", ratio, note=f"{spread}; {title}"))
    speeds = [f"{streams * case.tokens / float(np.median(each)):,.0f}" for each in found.seconds.values()]
    accepted = f"{share:.0%} of {speculation.checked:,}"
    return [name, *speeds, f"{ratio:.2f}", spread, accepted, f"{found.equal:.0%}"]


if __name__ == "__main__":
    typer.run(main)
