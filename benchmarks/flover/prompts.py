"""Long prompts and shared prefixes: time to the first token, and how long a running stream waits meanwhile.

Run `python -m benchmarks.flover.prompts [--quick] [--json FILE]`; it takes some minutes. A decoder of GPT-2 small's
size with random weights and 4,608 positions runs in one process, without a server.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import torch
import typer
from transformers import GPT2Config

from benchmarks.flover.precisions import random_weights
from benchmarks.report import Claim, Report, progress
from testing.decoders import byte_tokenizer
from testing.requests import FakeRequest
from tidal.flover.architectures import form_of
from tidal.flover.engine.engine import FloverEngine
from tidal.flover.engine.runners import SharedRunner
from tidal.flover.engine.speculation import Speculation
from tidal.flover.generation import Generation
from tidal.flover.metrics import FloverMetrics
from tidal.flover.native.tuning import measure_kernels
from tidal.flover.policies import FloverScheduler, PassCosts, ProfiledCosts
from tidal.flover.responder import Responder
from tidal.flover.responses import FloverResponse
from tidal.flover.runner import FloverRunner
from tidal.flover.sampling import Constraint, Sampler, SamplingParams
from tidal.flover.text import Detokenizer, StopMatcher
from tidal.metrics import Metrics
from tidal_builders.flover.profiling import measure_profile

PROMPTS = (512, 2000, 4000)
SHARED, OWN, REQUESTS = 512, 32, 16
_LENGTH = 4608
_ROUNDS = 3
# Prompts from this many tokens on are measured once: they take long enough.
_LONG = 1000
_GREEDY = SamplingParams()
# Tokens of the stream before a prompt arrives, whose gaps are those without prompts.
_BEFORE = 16


class TimedEngine:
    """An engine over a runner, driven step by step.

    Args:
        runner: Runner, used by one engine at a time; a shared one keeps its memory for the next engine.
        costs: Durations of its passes.
        reuse: Whether prompts reuse prefixes.
        speculation: Drafts; None: none.
    """

    def __init__(
        self, runner: FloverRunner | SharedRunner, costs: PassCosts, *, reuse: bool,
        speculation: Speculation | None = None,
    ) -> None:  # fmt: skip
        shared = runner if isinstance(runner, SharedRunner) else SharedRunner(runner)
        scheduler: FloverScheduler[Generation] = FloverScheduler(runner.slots, costs, prefill_share=1.0)
        self._engine = FloverEngine(
            scheduler, shared, Responder(1.0), FloverMetrics(Metrics("flover")),
            logging.getLogger(__name__), shuffle=True, reuse_prefixes=reuse, speculation=speculation,
        )  # fmt: skip
        self._tokenizer = byte_tokenizer()

    def add(
        self, prompt: Sequence[int], tokens: int, params: SamplingParams = _GREEDY, guide: Constraint | None = None
    ) -> Generation:
        """Queue a prompt, from which a number of tokens is generated, within a grammar if there is one."""
        request, ids = FakeRequest({}), np.array(prompt, np.int64)
        made = Generation(
            time.monotonic(), math.inf, len(ids),
            response=FloverResponse(cast(Any, request), 1, streaming=False), index=0, prompt_ids=ids,
            method=Sampler(params, ids, frozenset(), constraint=guide),
            detokenizer=Detokenizer(self._tokenizer, ids.tolist()), stops=StopMatcher(()), max_tokens=tokens,
            eos=frozenset(),
        )  # fmt: skip
        self._engine.add([made])
        return made

    def step(self) -> None:
        """Run one iteration."""
        self._engine.step()

    def finish(self) -> None:
        """Run until nothing is left."""
        while not self._engine.idle:
            self._engine.step()


def first_tokens(engine: TimedEngine, prompts: Sequence[Sequence[int]], tokens: int) -> list[float]:
    """Return the time to the first token of prompts that arrive together, in seconds."""
    asked = [engine.add(prompt, tokens) for prompt in prompts]
    engine.finish()
    return [each.first_token_at - each.arrival for each in asked]


def gaps_beside(engine: TimedEngine, prompt: Sequence[int], tokens: int) -> tuple[list[float], list[float], float]:
    """Return a stream's gaps before a prompt arrives, those until its first token, and the time to that token.

    Args:
        engine: FloverEngine without generations.
        prompt: Token ids of the prompt.
        tokens: Number of tokens of the stream, which ends with the prompt's first token.
    """
    stream, at = engine.add([1] * 16, tokens), list[float]()

    def step() -> None:
        before = len(stream.tokens)
        engine.step()
        if len(stream.tokens) > before:
            at.append(stream.last_token_at)

    while len(at) <= _BEFORE:
        step()
    quiet = np.diff(at).tolist()
    del at[:-1]
    long = engine.add(prompt, 1)
    while not long.first_token_at:
        step()
    stream.response.cancelled = True
    engine.finish()
    return quiet, np.diff(at).tolist(), long.first_token_at - long.arrival


def make_claims(speedup: float, stalls: dict[int, float]) -> list[Claim]:
    """Return the claims of a run.

    Args:
        speedup: Mean time to the first token without reuse over that with it.
        stalls: 99th percentile of a stream's gaps beside a prompt over its median gap without, by prompt tokens.
    """
    note = f"{REQUESTS} requests together, {OWN} tokens of their own; mean time to the first token"
    claims = [Claim(f"prefix_ttft_speedup[{SHARED} shared]", ">= 5", speedup, note=note)]
    for tokens, ratio in stalls.items():
        note = "gaps between a stream's tokens beside the prompt: 99th percentile over the median without"
        claims.append(Claim(f"itl_p99_ratio[{tokens} prompt]", "<= 2", ratio, note=note))
    return claims


def main(
    quick: Annotated[bool, typer.Option("--quick", help="3 of 12 layers and one round; about a minute.")] = False,
    precision: Annotated[str, typer.Option(help="bf16, int8 or int4.")] = "bf16",
    threads: Annotated[int | None, typer.Option(help="CPU threads; default: all cores.")] = None,
    json: Annotated[Path | None, typer.Option(help="File for the results; tables are written next to it.")] = None,
) -> None:
    """Measure long prompts and shared prefixes on this machine."""
    count = threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(count)
    report, kernels = Report("prompts", quick), measure_kernels(count)
    form = form_of(GPT2Config(n_positions=_LENGTH, n_layer=3 if quick else 12))
    weights = random_weights(form, cast(Any, precision))
    runner = FloverRunner(form, weights, slots=REQUESTS + 1, max_length=_LENGTH, tiling=kernels)
    progress("profile")
    profile = measure_profile(runner, threads=count, seconds=1 if quick else 20, progress=lambda _: None)
    costs = ProfiledCosts(profile.step, profile.chunk, mixed=runner.runs_mixed)
    draw, rows, stalls = np.random.default_rng(0), [], dict[int, float]()
    for tokens in PROMPTS:
        progress(f"prompts of {tokens} tokens")
        prompt = draw.integers(0, form.vocabulary, tokens).tolist()
        rounds = _ROUNDS if tokens < _LONG and not quick else 1
        alone = min(first_tokens(TimedEngine(runner, costs, reuse=False), [prompt], 1)[0] for _ in range(rounds))
        quiet, beside, first = gaps_beside(TimedEngine(runner, costs, reuse=False), prompt, _LENGTH - 32)
        median = float(np.median(quiet))
        stalls[tokens] = float(np.quantile(beside, 0.99)) / median
        report.measured[f"{tokens}"] = {"alone, s": alone, "beside, s": first, "gaps, s": beside, "quiet, s": quiet}
        rows.append(
            [
                *(f"{tokens:,}", f"{alone:.2f}", f"{first:.2f}", f"{median * 1e3:.1f}"),
                *(f"{np.quantile(beside, share) / median:.2f}" for share in (0.5, 0.99)),
            ]
        )
    columns = ["prompt", "first token, s", "beside a stream, s", "its gap, ms", "gap beside, p50 ×", "p99 ×"]
    report.add_table(
        f"GPT-2 small's size, {form.layers} layers, {precision}, {count} threads; {kernels}", columns, rows
    )
    progress("shared prefixes")
    start = draw.integers(0, form.vocabulary, SHARED).tolist()
    found: dict[bool, list[float]] = {}
    for reuse in (False, True):
        for _ in range(1 if quick else _ROUNDS):
            prompts = [start + draw.integers(0, form.vocabulary, OWN).tolist() for _ in range(REQUESTS)]
            engine = TimedEngine(runner, costs, reuse=reuse)
            first_tokens(engine, [start], 1)  # an earlier request with the prefix
            found.setdefault(reuse, []).append(float(np.mean(first_tokens(engine, prompts, 32))))
    without, reused = (float(np.median(found[each])) for each in (False, True))
    report.measured["prefixes, s"] = {"whole": found[False], "reused": found[True]}
    report.add_table(
        f"{REQUESTS} requests that share {SHARED} tokens", ["prompts", "mean first token, s"],
        [["computed as a whole", f"{without:.2f}"], ["reused", f"{reused:.2f}"]],
    )  # fmt: skip
    report.claims += make_claims(without / reused, stalls)
    report.finish(json)


if __name__ == "__main__":
    typer.run(main)
