"""Tidal's side: engines over runners in this process, without a server."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.flover.peers.requests import Request, Timeline
from benchmarks.flover.prompts import TimedEngine
from tidal.flover.engine.runners import SharedRunner
from tidal.flover.form import DecoderForm
from tidal.flover.generation import Generation
from tidal.flover.models.weights import DecoderWeights
from tidal.flover.native.tiling import Tiling
from tidal.flover.policies import PassCosts, ProfiledCosts
from tidal.flover.runner import FloverRunner
from tidal.flover.sampling import SamplingParams
from tidal_builders.flover.profiling import measure_profile

_GREEDY = SamplingParams(temperature=0)


@dataclass
class TidalSide:
    """An engine over a runner for each run; memory that slots have used stays committed, as in a server.

    Drafts are off: texts of random weights repeat themselves, which drafts would gain from.

    Attributes:
        runner: The runner.
        costs: Measured durations of its passes.
        reuse: Whether prompts reuse prefixes of earlier ones of a run.
    """

    runner: SharedRunner
    costs: PassCosts
    reuse: bool = False

    @classmethod
    def open(
        cls, form: DecoderForm, weights: DecoderWeights, tiling: Tiling | None, *, slots: int, longest: int,
        threads: int, profile_s: float,
    ) -> TidalSide:  # fmt: skip
        """Open a runner and measure its passes, as a build does.

        Args:
            form: Architecture.
            weights: Weights.
            tiling: Choices of the native kernels.
            slots: Number of slots.
            longest: Most tokens of a sequence.
            threads: Number of threads.
            profile_s: Seconds for the measurement.
        """
        runner = FloverRunner(form, weights, slots=slots, max_length=longest, tiling=tiling)
        profile = measure_profile(runner, threads=threads, seconds=profile_s, progress=lambda _: None)
        return cls(SharedRunner(runner), ProfiledCosts(profile.step, profile.chunk, mixed=runner.runs_mixed))

    def reusing(self) -> TidalSide:
        """Return the same with prefixes reused."""
        return TidalSide(self.runner, self.costs, reuse=True)

    def run(self, requests: Sequence[Request], until: int | None = None) -> Timeline:
        """See `Side`."""
        engine = TimedEngine(self.runner, self.costs, reuse=self.reuse)
        made: list[Generation] = []
        times: list[list[float]] = [[] for _ in requests]
        began = time.monotonic()
        open_ones: list[int] = []
        while len(made) < len(requests) or open_ones:
            now = time.monotonic() - began
            while len(made) < len(requests) and requests[len(made)].at <= now:
                each = requests[len(made)]
                open_ones.append(len(made))
                made.append(engine.add(each.prompt, each.tokens, _GREEDY))
            if not open_ones:
                time.sleep(max(0.0, requests[len(made)].at - now))
                continue
            engine.step()
            for number in open_ones:
                text, seen = made[number], times[number]
                # An iteration with a prompt's last chunk and a decode step apart gives two tokens.
                if text.tokens and not seen:
                    seen.append(text.first_token_at - began)
                seen += [text.last_token_at - began] * (len(text.tokens) - len(seen))
            open_ones = [number for number in open_ones if len(times[number]) < requests[number].tokens]
            if until is not None and until < len(made) and until not in open_ones:
                break
        for number in open_ones:
            made[number].response.cancelled = True
        engine.finish()
        first = [each.tokens[0] if each.tokens else -1 for each in made]
        return Timeline([each.at for each in requests], times, first)
