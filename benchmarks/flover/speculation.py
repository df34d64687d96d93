"""Tokens per second with and without drafts by prompt lookup, for texts that repeat themselves and others.

Run `python -m benchmarks.flover.speculation [--quick] [--json FILE]`; it takes some minutes. Engines with and without
drafts alternate in one process, without a server, and their tokens are compared. Decoders: GPT-2 small's size with
random weights; the same with a head that makes each text a loop of 29 tokens; the same with 232 tokens, all of which
are in the prompts, so that sampled texts change from one known loop to another; and the demo's small trained writer,
whose texts repeat little.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from transformers import AutoConfig, AutoTokenizer, GPT2Config

from benchmarks.flover.precisions import random_weights
from benchmarks.flover.prompts import TimedEngine
from benchmarks.report import Claim, Report, progress
from tidal.flover.architectures import form_of
from tidal.flover.engine.speculation import Speculation
from tidal.flover.form import DecoderForm
from tidal.flover.models.weights import DecoderWeights, Dense
from tidal.flover.models.weights_file import load_weights
from tidal.flover.native.tuning import measure_kernels
from tidal.flover.policies import PassCosts, ProfiledCosts, SpeculationPolicy
from tidal.flover.runner import FloverRunner
from tidal.flover.sampling import SamplingParams
from tidal_builders.flover.converting import SourceTensors, stored_head, write_weights
from tidal_builders.flover.profiling import measure_profile

STREAMS = (1, 8, 32)
_LENGTH = 512
_LOOP, _LOOPS = 29, 8
# Mean probability of a loop's next token in texts that leave it now and then.
_STAYS = 0.8
WRITER = Path(__file__).parents[2] / "demo/writer"
# A passage that asks for a repetition of its words, as summaries, edits and answers from a context do.
_PASSAGE = "Tidal serves transformers with Triton. A model repository has a folder for each model. "


@dataclass
class Case:
    """Prompts of one kind, and how their texts are generated.

    Attributes:
        name: Kind of the texts.
        prompts: Token ids of as many prompts as the largest number of streams.
        tokens: Number of tokens to generate of each.
        params: Settings of sampling, with the number of a prompt as seed if they have one.
        goal: Least ratio of tokens per second by number of streams.
    """

    name: str
    prompts: Sequence[Sequence[int]]
    tokens: int
    params: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0))
    goal: dict[int, float] = field(default_factory=dict)


@dataclass
class Outcome:
    """Rounds of one case and number of streams.

    Attributes:
        seconds: Seconds of each round, without and with drafts.
        equal: Share of texts that are equal.
        gained: Share of the tokens that drafts gained, in the last round.
    """

    seconds: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    equal: float = 1.0
    gained: float = 0.0

    @property
    def ratios(self) -> list[float]:
        """Tokens per second with drafts over those without, of each round."""
        return [without / drafted for without, drafted in zip(*self.seconds.values(), strict=True)]


def measure(
    runner: FloverRunner, costs: PassCosts, case: Case, streams: int, rounds: int,
    speculation: Speculation | None = None,
) -> Outcome:  # fmt: skip
    """Generate the texts of a case in alternation without and with drafts.

    Args:
        runner: Runner of the decoder.
        costs: Durations of its passes.
        case: Prompts and how to generate.
        streams: Number of prompts.
        rounds: Number of rounds.
        speculation: Drafts; None: by prompt lookup.
    """
    found, texts = Outcome(), dict[bool, list[list[int]]]()
    speculation = speculation or Speculation(SpeculationPolicy(costs, share=1.0))
    for number in range(rounds):
        for drafted in (False, True) if number % 2 == 0 else (True, False):
            engine = TimedEngine(runner, costs, reuse=False, speculation=speculation if drafted else None)
            params = [case.params if case.params.greedy else replace(case.params, seed=n) for n in range(streams)]
            began = time.perf_counter()
            asked = [
                engine.add(prompt, case.tokens, each)
                for prompt, each in zip(case.prompts[:streams], params, strict=True)
            ]
            steps = 0
            while not asked[0].first_token_at or any(each.finish_reason is None for each in asked):
                engine.step()
                steps += 1
            found.seconds[drafted].append(time.perf_counter() - began)
            texts[drafted] = [each.tokens for each in asked]
            if drafted:
                found.gained = 1 - steps / case.tokens
        alike = [one == other for one, other in zip(*texts.values(), strict=True)]
        found.equal = min(found.equal, sum(alike) / len(alike))
    return found


def random_prompts(vocabulary: int) -> list[list[int]]:
    """Return prompts of 64 random tokens, one per stream."""
    draw = np.random.default_rng(0)
    return [draw.integers(0, vocabulary, 64).tolist() for _ in range(max(STREAMS))]


def looping(weights: DecoderWeights) -> DecoderWeights:
    """Return weights whose most likely token behind each token is the next one of its loop.

    Embeddings exceed what layers add, and the head's row of a token is the embedding of the token before it.
    """
    tokens = weights.tokens.float() * 50
    ids = torch.arange(len(tokens) // _LOOP * _LOOP).view(-1, _LOOP)
    before = torch.arange(len(tokens))
    before[: ids.numel()] = ids.roll(1, dims=1).flatten()
    head = stored_head(Dense(tokens[before], None), tokens, "bf16", 64)
    return replace(weights, tokens=tokens.bfloat16(), head=head)


def leaving(runner: FloverRunner, prompt: Sequence[int]) -> float:
    """Return the temperature at which a text stays in its loop with probability `_STAYS` per token, on average."""
    logits = runner.score(0, np.array(prompt, np.int64)).double()
    least, most = 1e-3, 1e6
    for _ in range(60):
        middle = (least * most) ** 0.5
        stays = float((logits / middle).softmax(dim=-1).amax(dim=-1).mean())
        least, most = (middle, most) if stays > _STAYS else (least, middle)
    return least


def random_cases(_runner: FloverRunner, vocabulary: int, tokens: int) -> list[Case]:
    """Return the case of random weights: sampled texts without repetitions."""
    params = SamplingParams(temperature=1.0, seed=0)
    return [Case("other text", random_prompts(vocabulary), tokens, params, dict.fromkeys(STREAMS, 0.97))]


def loop_cases(_runner: FloverRunner, vocabulary: int, tokens: int) -> list[Case]:
    """Return the case of greedy texts that stay in a loop."""
    goals = {**dict.fromkeys(STREAMS, 0.97), 1: 1.5}
    return [Case("repetitive text", random_prompts(vocabulary), tokens, goal=goals)]


def changing_cases(runner: FloverRunner, vocabulary: int, tokens: int) -> list[Case]:
    """Return the case of sampled texts that change between the loops of their prompts."""
    prompts = [np.roll(np.arange(vocabulary), -_LOOP * number).tolist() for number in range(max(STREAMS))]
    params = SamplingParams(temperature=leaving(runner, prompts[0]), seed=0)
    return [Case("partly repetitive text", prompts, tokens, params, dict.fromkeys(STREAMS, 0.97))]


def trained_writer() -> tuple[DecoderForm, DecoderWeights]:
    """Return the demo's writer."""
    config = AutoConfig.from_pretrained(WRITER)
    form = form_of(config)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "weights.safetensors"
        tied = bool(config.tie_word_embeddings)
        write_weights(SourceTensors(WRITER, form.family), form, file, "bf16", 64, tied=tied)
        return form, load_weights(file, form)


def writer_cases(_runner: FloverRunner, _vocabulary: int, tokens: int) -> list[Case]:
    """Return the cases of the trained writer: greedy and sampled texts behind a passage."""
    tokenizer: Any = AutoTokenizer.from_pretrained(WRITER)
    prompts = [tokenizer(f"{_PASSAGE * 2}{number}. ")["input_ids"] for number in range(max(STREAMS))]
    goals = dict.fromkeys(STREAMS, 0.97)
    return [
        Case("trained, greedy", prompts, tokens, goal=goals),
        Case("trained, sampled", prompts, tokens, SamplingParams(temperature=1.0, seed=0), goals),
    ]


def main(
    quick: Annotated[bool, typer.Option("--quick", help="3 of 12 layers and fewer tokens; about a minute.")] = False,
    threads: Annotated[int | None, typer.Option(help="CPU threads; default: all cores.")] = None,
    json: Annotated[Path | None, typer.Option(help="File for the results; tables are written next to it.")] = None,
) -> None:
    """Measure what drafts by prompt lookup gain and cost on this machine."""
    count = threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(count)
    report, kernels = Report("speculation", quick), measure_kernels(count)
    tokens, rounds = (96, 3) if quick else (256, 5)
    form = form_of(GPT2Config(n_positions=_LENGTH, n_layer=3 if quick else 12))
    few = form.model_copy(update={"vocabulary": _LOOPS * _LOOP})
    random = random_weights(form, "bf16")
    models = [
        ("GPT-2 small's size, random, bf16", form, random, random_cases),
        ("GPT-2 small's size, made to loop, bf16", form, looping(random), loop_cases),
        ("the same with few tokens, bf16", few, looping(random_weights(few, "bf16")), changing_cases),
        ("the demo's writer, trained, bf16", *trained_writer(), writer_cases),
    ]
    for title, form, weights, make_cases in models:
        rows = []
        runner = FloverRunner(form, weights, slots=max(STREAMS), max_length=_LENGTH, tiling=kernels)
        progress("profile")
        profile = measure_profile(runner, threads=count, seconds=1 if quick else 20, progress=lambda _: None)
        costs = ProfiledCosts(profile.step, profile.chunk, mixed=runner.runs_mixed)
        for case in make_cases(runner, form.vocabulary, tokens):
            for streams in STREAMS:
                progress(f"{case.name}, {streams} streams")
                found = measure(runner, costs, case, streams, rounds)
                ratio = float(np.median(found.ratios))
                speeds = [streams * case.tokens / float(np.median(each)) for each in found.seconds.values()]
                name = f"{streams}, {case.name}"
                report.measured[name] = {
                    "seconds": {"plain": found.seconds[False], "drafted": found.seconds[True]},
                    "equal": found.equal,
                    "gained": found.gained,
                }
                spread = f"{min(found.ratios):.2f} to {max(found.ratios):.2f}"
                rows.append(
                    [
                        *(name, *(f"{speed:,.0f}" for speed in speeds), f"{ratio:.2f}", spread),
                        *(f"{found.gained:.0%}", f"{found.equal:.0%}"),
                    ]
                )
                report.claims.append(
                    Claim(f"speculation_gain[{name}]", f">= {case.goal[streams]}", ratio, note=f"{spread}; {title}")
                )
        columns = ["streams, texts", "tokens/s without", "with drafts", "ratio", "spread", "fewer steps", "equal texts"]
        report.add_table(title, columns, rows)
        del runner
    report.finish(json)


if __name__ == "__main__":
    typer.run(main)
