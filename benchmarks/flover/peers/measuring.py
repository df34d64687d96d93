"""Measures a decoder in one precision: the peer's settings, then both sides in alternation."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.flover.peers.cases import STREAMS, PeerCase, PeerLoads
from benchmarks.flover.peers.decoders import Decoder, Precision
from benchmarks.flover.peers.genai_side import SETTINGS, GenAiSettings, GenAiSide, opened
from benchmarks.flover.peers.requests import Request, Side
from benchmarks.flover.peers.tidal_side import TidalSide
from benchmarks.flover.peers.worker_process import Worker
from benchmarks.report import progress
from tidal.flover.form import KeyValueType
from tidal.flover.memory.buffers import cache_dtype, slot_layout
from tidal.flover.native.tiling import Tiling

TIDAL, GENAI, WHOLE = "Tidal", "OpenVINO GenAI", "Tidal, prefixes computed"
# Seeds of the search are below those of the rounds.
_SEARCH_SEED, _FIRST_SEED = 1, 1000
#: Tokens of a sequence whose memory is compared.
SEQUENCE = 256


@dataclass(frozen=True, slots=True)
class PeerSize:
    """Extent of the measurement.

    Attributes:
        rounds: Number of rounds.
        tokens: Tokens of each of simultaneous requests.
        searched: Tokens of each in the search.
        long: Tokens of the longest prompt.
        searched_long: Tokens of the prompt that settings for the longest one are chosen with.
        profile_s: Seconds for the profile of Tidal's passes.
        later_s: Seconds until the requests arrive that meet a running stream, or a known prefix.
        load: Share of the peer's throughput at which recorded requests arrive.
    """

    rounds: int
    tokens: int
    searched: int
    long: int
    searched_long: int
    profile_s: float
    later_s: float = 2.0
    load: float = 0.7


FULL = PeerSize(rounds=3, tokens=128, searched=24, long=8000, searched_long=2000, profile_s=15.0)
QUICK = PeerSize(rounds=1, tokens=16, searched=4, long=1500, searched_long=400, profile_s=1.0, later_s=0.1)


@dataclass
class PrecisionRun:
    """Figures of a decoder in one precision.

    Attributes:
        figures: Figures of the rounds, by name and side.
        chosen: The peer's settings by purpose.
        searched: The peer's figures by settings and purpose.
        equal: Share of the first tokens on which both sides agree.
        sequences: Sequences of 256 tokens in a GiB, by type of keys and values and side.
    """

    figures: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    chosen: dict[str, str] = field(default_factory=dict)
    searched: dict[str, dict[str, float]] = field(default_factory=dict)
    equal: float = 0.0
    sequences: dict[str, dict[str, float]] = field(default_factory=dict)

    def add(self, side: str, found: Mapping[str, float]) -> None:
        """Add a round's figures of a side."""
        for name, value in found.items():
            self.figures.setdefault(name, {}).setdefault(side, []).append(value)


@dataclass(frozen=True)
class PeerBench:
    """Measures one precision.

    Args:
        decoder: The decoder.
        precision: Precision of the weights.
        worker: Process of the peer.
        kernels: Choices of Tidal's kernels.
        size: Extent.
        threads: Number of threads of each side.
        data: Folder with recorded lengths; None: they are not measured.
        memory: Whether to compare the memory of sequences.
    """

    decoder: Decoder
    precision: Precision
    worker: Worker
    kernels: Tiling | None
    size: PeerSize
    threads: int
    data: Path | None
    memory: bool

    def measure(self) -> PrecisionRun:
        """Measure everything."""
        run, loads = (
            PrecisionRun(),
            PeerLoads(self.decoder.vocabulary, self.size.tokens, self.size.long, self.size.later_s),
        )
        purposes = self._purposes(loads)
        self._search(run, purposes)
        chosen = {purpose: _best(run, purpose) for purpose in purposes}
        run.chosen = {purpose: str(settings) for purpose, settings in chosen.items()}
        self._say("opening Tidal's runners")
        ours = self._tidal(loads)
        with ExitStack() as stack:
            pipelines: dict[GenAiSettings, GenAiSide] = {}

            def peer(settings: GenAiSettings) -> GenAiSide:
                if settings not in pipelines:
                    folder = self.decoder.graph(self.precision)
                    pipelines[settings] = stack.enter_context(opened(self.worker, folder, settings, self.threads))
                return pipelines[settings]

            cases = self._cases(loads, ours, chosen, peer)
            for case, sides in cases:  # what only the first runs pay
                for side in sides.values():
                    side.run([Request(each.prompt[:64], min(4, each.tokens)) for each in case.requests(0)[:2]])
            for number in range(self.size.rounds):
                for case, sides in cases:
                    self._round(run, case, sides, number)
        if self.memory:
            self._compare_memory(run, loads)
        return run

    def _cases(
        self, loads: PeerLoads, ours: dict[str, TidalSide], chosen: Mapping[str, GenAiSettings], peer: Any
    ) -> list[tuple[PeerCase, dict[str, Side]]]:
        short = ours["short"]
        cases: list[tuple[PeerCase, dict[str, Side]]] = [
            (loads.together(count), {TIDAL: short, GENAI: peer(chosen[f"{count} streams"])}) for count in STREAMS
        ]
        cases.append((loads.prompt(512), {TIDAL: short, GENAI: peer(chosen["prompts"])}))
        reusing = peer(chosen["prompts"].reusing())
        cases.append((loads.shared(), {TIDAL: short.reusing(), GENAI: reusing, WHOLE: short}))
        if "long" in ours:
            cases.append((loads.prompt(self.size.long), {TIDAL: ours["long"], GENAI: peer(chosen["long prompts"])}))
            cases.append((loads.beside(), {TIDAL: ours["long"], GENAI: peer(chosen["streams beside prompts"])}))
            if self.data is not None:
                full = loads.recorded(self.data, None)
                side = peer(chosen["32 streams"])
                rate = self.size.load * full.figures(side.run(full.requests(_SEARCH_SEED)))["requests/s"]
                cases.append((loads.recorded(self.data, rate), {TIDAL: short, GENAI: side}))
        return cases

    def _round(self, run: PrecisionRun, case: PeerCase, sides: Mapping[str, Side], number: int) -> None:
        requests, first = case.requests(_FIRST_SEED + 10 * number), dict[str, list[int]]()
        names = list(sides) if number % 2 == 0 else list(sides)[::-1]
        for name in names:
            self._say(f"round {number + 1} of {self.size.rounds}: {case.name}, {name}")
            found = sides[name].run(requests, case.until)
            run.add(name, case.figures(found))
            first[name] = found.first_tokens
        if case.name == f"{STREAMS[-1]} at once":
            alike = [one == other for one, other in zip(first[TIDAL], first[GENAI], strict=True)]
            run.equal = sum(alike) / len(alike)

    def _purposes(self, loads: PeerLoads) -> dict[str, tuple[PeerCase, str]]:
        found = {
            f"{count} streams": (loads.together(count, self.size.searched), f"tokens/s[{count}]") for count in STREAMS
        }
        found["prompts"] = loads.prompt(512), "first token, 512 prompt"
        if self._has_long:
            length = self.size.searched_long
            found["long prompts"] = loads.prompt(length), f"first token, {length} prompt"
            found["streams beside prompts"] = (
                replace(loads, long=length).beside(),
                "gap p99 beside, ratio",
            )
        return found

    def _search(self, run: PrecisionRun, purposes: Mapping[str, tuple[PeerCase, str]]) -> None:
        for settings in SETTINGS:
            self._say(f"searching the peer's settings: {settings}")
            with opened(self.worker, self.decoder.graph(self.precision), settings, self.threads) as side:
                side.run(purposes["prompts"][0].requests(0))
                run.searched[str(settings)] = {
                    purpose: case.figures(side.run(case.requests(_SEARCH_SEED), case.until))[figure]
                    for purpose, (case, figure) in purposes.items()
                }

    def _tidal(self, loads: PeerLoads) -> dict[str, TidalSide]:
        form, weights = self.decoder.form, self.decoder.weights(self.precision)
        found = {"short": (STREAMS[-1], self._longest)}
        if self._has_long:
            found["long"] = (2, loads.long + 1200)
        return {
            name: TidalSide.open(
                form, weights, self.kernels, slots=slots, longest=longest, threads=self.threads,
                profile_s=self.size.profile_s,
            )
            for name, (slots, longest) in found.items()
        }  # fmt: skip

    @property
    def _has_long(self) -> bool:
        return self.decoder.positions > self.size.long

    @property
    def _longest(self) -> int:
        """Most tokens of a sequence of all cases but those of long prompts."""
        return 1280 if self._has_long else 640

    def _compare_memory(self, run: PrecisionRun, loads: PeerLoads) -> None:
        """Sequences of 256 tokens in a GiB: those of the peer by its own count of used blocks."""
        requests = [Request([*each.prompt] * 7, 32) for each in loads.together(STREAMS[-1]).requests(_SEARCH_SEED)]
        weights = self.decoder.weights(self.precision)
        kinds: tuple[tuple[KeyValueType, str], ...] = (("auto", "bf16"), ("int8", "u8"))
        for own, kv in kinds:
            dtype = cache_dtype(weights.tokens.dtype, torch.device("cpu"), own)
            pages = slot_layout(self.decoder.form, self._longest, dtype, torch.device("cpu")).pages
            settings = GenAiSettings(kv, 1024, split=True, cache_gb=2)
            with opened(self.worker, self.decoder.graph(self.precision), settings, self.threads) as side:
                used = side.run(requests).cache * settings.cache_gb
            run.sequences["int8" if kv == "u8" else kv] = {
                TIDAL: 2**30 / pages.bytes(SEQUENCE),
                GENAI: len(requests) / used,
            }

    def _say(self, text: str) -> None:
        progress(f"{self.decoder.name}, {self.precision}: {text}")


def _best(run: PrecisionRun, purpose: str) -> GenAiSettings:
    """The settings with the best figure for a purpose: the most tokens per second, else the least time."""
    sign = -1 if purpose.endswith("streams") else 1
    return min(SETTINGS, key=lambda settings: sign * run.searched[str(settings)][purpose])
