"""The cases: requests by seed, and the figures of a run."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.flover.load import poisson
from benchmarks.flover.peers.requests import Request, Timeline

STREAMS = (1, 8, 32)
_PROMPT = 32
SHARED, OWN, SHARING = 512, 32, 16
# Most tokens of recorded prompts and answers.
MOST_PROMPT, MOST_ANSWER = 1024, 256
RECORDED = 24
_RECORDED_TEXTS = Path("azure_llm_2023") / "conv.csv.gz"


@dataclass(frozen=True)
class PeerCase:
    """A load and what is measured of it.

    Attributes:
        name: Name.
        requests: Requests by seed.
        figures: Figures of a run by name: more is better for those that end in `/s`, less for others.
        until: Request with whose last token a run ends; None: with all.
    """

    name: str
    requests: Callable[[int], Sequence[Request]]
    figures: Callable[[Timeline], Mapping[str, float]]
    until: int | None = None


@dataclass(frozen=True, slots=True)
class PeerLoads:
    """Makes the cases of a decoder.

    Attributes:
        vocabulary: Number of tokens; ids are below it.
        tokens: Number of tokens of each answer of simultaneous requests.
        long: Number of tokens of the longest prompt.
        later_s: Arrival in seconds of what comes to a decoder that is busy or has seen a prefix.
    """

    vocabulary: int
    tokens: int
    long: int
    later_s: float = 2.0

    def together(self, count: int, tokens: int | None = None) -> PeerCase:
        """Simultaneous requests with prompts of 32 tokens."""

        def requests(seed: int) -> list[Request]:
            return [Request(prompt, tokens or self.tokens) for prompt in self._prompts(seed, count, _PROMPT)]

        def figures(run: Timeline) -> dict[str, float]:
            return {f"tokens/s[{count}]": run.tokens_per_s, f"first token[{count}]": _mean(run.first_token_s())}

        return PeerCase(f"{count} at once", requests, figures)

    def prompt(self, length: int) -> PeerCase:
        """One prompt by itself, until its first token."""

        def requests(seed: int) -> list[Request]:
            return [Request(self._prompts(seed, 1, length)[0], 1)]

        return PeerCase(
            f"a prompt of {length:,}", requests, lambda run: {f"first token, {length} prompt": run.first_token_s()[0]}
        )

    def shared(self) -> PeerCase:
        """Requests that arrive together and share a prefix, which an earlier one had too."""

        def requests(seed: int) -> list[Request]:
            (prefix,) = self._prompts(seed, 1, SHARED)
            own = self._prompts(seed + 1, SHARING, OWN)
            return [Request(prefix, 1), *(Request([*prefix, *each], 32, self.later_s) for each in own)]

        def figures(run: Timeline) -> dict[str, float]:
            return {
                "first token, shared": _mean(run.first_token_s()[1:]),
                "all, shared": run.seconds - self.later_s,
            }

        return PeerCase(f"{SHARING} with {SHARED} shared tokens", requests, figures)

    def beside(self) -> PeerCase:
        """The longest prompt beside a running stream: its gaps over those before the prompt arrived."""

        def requests(seed: int) -> list[Request]:
            (short,), (long,) = self._prompts(seed, 1, _PROMPT), self._prompts(seed + 1, 1, self.long)
            return [Request(short, 1000), Request(long, 1, self.later_s)]

        def figures(run: Timeline) -> dict[str, float]:
            quiet = float(np.median(run.gaps(0, self.later_s / 4, self.later_s)))
            gaps = run.gaps(0, self.later_s, run.times[1][0])
            return {
                "gap p50 beside, ratio": float(np.median(gaps)) / quiet,
                "gap p99 beside, ratio": float(np.quantile(gaps, 0.99)) / quiet,
                "first token beside a stream": run.first_token_s()[1],
            }

        return PeerCase(f"{self.long:,} beside a stream", requests, figures, until=1)

    def recorded(self, data: Path, rate: float | None) -> PeerCase:
        """Recorded lengths of prompts and answers, at random or all at once.

        Args:
            data: Folder with `azure_llm_2023`.
            rate: Requests per second; None: all at once.
        """
        with gzip.open(data / _RECORDED_TEXTS, "rt") as rows:
            lengths = [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(rows)]

        def requests(seed: int) -> list[Request]:
            chosen = np.random.default_rng([seed, 4]).choice(len(lengths), RECORDED)
            at = [0.0] * RECORDED if rate is None else poisson(RECORDED, 1 / rate, seed)
            made = []
            for number, (place, arrival) in enumerate(zip(chosen.tolist(), at, strict=True)):
                prompt, answer = lengths[place]
                (ids,) = self._prompts(seed * RECORDED + number, 1, min(MOST_PROMPT, max(2, prompt)))
                made.append(Request(ids, min(MOST_ANSWER, max(2, answer)), arrival))
            return made

        def figures(run: Timeline) -> dict[str, float]:
            return {
                "latency, recorded": _mean(run.latency_s()),
                "first token, recorded": _mean(run.first_token_s()),
                "requests/s": len(run.at) / run.seconds,
            }

        return PeerCase("recorded lengths", requests, figures)

    def _prompts(self, seed: int, count: int, length: int) -> list[list[int]]:
        draw = np.random.default_rng([seed, length])
        found: list[list[int]] = draw.integers(0, self.vocabulary, (count, length)).tolist()
        return found


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
