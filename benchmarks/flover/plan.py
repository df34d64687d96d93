"""The loads, the systems measured with each, and the number of rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.flover.kept_run import FloverRun
from benchmarks.flover.load import FloverLoad, FloverLoadGenerator, at_once, constant, equal, poisson, recorded, uniform
from benchmarks.flover.systems import BATCHES, INSTANCES, PEERS, TIDAL, UNSHUFFLED, Form, batches

#: Number of requests of every load, except of simultaneous ones.
REQUESTS = 32
# Seeds of measured loads are above those of the search.
_FIRST_SEED = 1000
_CONSTANT_S = 0.5


@dataclass(frozen=True, slots=True)
class FloverSize:
    """Extent of the measurements.

    Attributes:
        rounds: Number of rounds of loads with claims; other loads have one.
        tokens: Number of tokens of simultaneous requests (512 in the paper).
        at_once: Numbers of simultaneous requests.
        repeated: Those of `at_once` with claims: measured in every round, and with peers if above 1.
        sweep: Smallest and largest number of tokens in the sweep of λ.
        gaps_s: Mean gaps λ in seconds; the first is measured in every round, and once with peers.
        instances_s: Those of `gaps_s` that concurrent instances are measured at.
        least: Lower bound of random numbers of tokens.
        mosts: Upper bounds of random numbers of tokens; the last is measured in every round.
        windows_s: Windows of dynamic batching in seconds.
        fixed: Sizes of static batches.
        searched: Number of tokens per request of the search.
        compared: Number of prompts compared with transformers.
        cancels: Number of clients that cancel.
    """

    rounds: int
    tokens: int
    at_once: tuple[int, ...]
    repeated: tuple[int, ...]
    sweep: tuple[int, int]
    gaps_s: tuple[float, ...]
    instances_s: tuple[float, ...]
    least: int
    mosts: tuple[int, ...]
    windows_s: tuple[float, ...]
    fixed: tuple[int, ...]
    searched: int
    compared: int
    cancels: int


FULL = FloverSize(
    rounds=3,
    tokens=512,
    at_once=(1, 2, 4, 8, 16, 32),
    repeated=(1, 8, 32),
    sweep=(192, 192),
    gaps_s=(0.02, 0.1, 0.5, 1.0, 2.0, 5.0),
    instances_s=(0.02, 1.0),
    least=128,
    mosts=(256, 512),
    windows_s=(0.5, 2.0, 16.0),
    fixed=(8, 16),
    searched=32,
    compared=64,
    cancels=1000,
)
QUICK = FloverSize(
    rounds=1,
    tokens=48,
    at_once=(1, 8, 32),
    repeated=(1, 8, 32),
    sweep=(16, 64),
    gaps_s=(0.02,),
    instances_s=(0.02,),
    least=16,
    mosts=(64,),
    windows_s=(),
    fixed=(),
    searched=16,
    compared=16,
    cancels=100,
)


@dataclass(frozen=True, slots=True)
class FloverCase:
    """A load and the systems to run it on in one round.

    Attributes:
        name: Name of the case, the same in every round.
        load: Load of this round.
        systems: Systems by the name that outcomes are kept under.
    """

    name: str
    load: FloverLoad
    systems: Mapping[str, str | Form]


@dataclass(frozen=True)
class MeasurementPlan:
    """All cases of a run.

    Args:
        size: Extent of the measurements.
        loads: Generator of loads.
        run: Run with the chosen settings of the baselines.
        data: Folder with recorded lengths; None: no such load.
    """

    size: FloverSize
    loads: FloverLoadGenerator
    run: FloverRun
    data: Path | None

    def cases(self, round_index: int) -> Iterator[FloverCase]:
        """Yield the cases of a round, counted from 0."""
        seed = _FIRST_SEED + round_index
        yield from self._together(round_index, seed)
        yield from self._sweep(round_index, seed)
        yield from self._lengths(round_index, seed)
        if round_index == 0 and (self.size.windows_s or self.size.fixed):
            yield from self._constant(seed)

    def _peers(self) -> dict[str, str | Form]:
        """Peers close to the fastest one: outside of the sweep, slow ones would take most of the time."""
        return {model: self.run.forms[model] for model in self.run.close_peers}

    def _all_peers(self) -> dict[str, str | Form]:
        return {model: self.run.forms[model] for model in PEERS if model in self.run.forms}

    def _together(self, round_index: int, seed: int) -> Iterator[FloverCase]:
        for count in self.size.at_once:
            if round_index == 0 or count in self.size.repeated:
                tokens = equal(count, self.size.tokens)
                load = self.loads.make(together(count), at_once(count), tokens, seed)
                peers = self._peers() if count > 1 and count in self.size.repeated else {}
                yield FloverCase(load.name, load, {TIDAL: TIDAL, **peers})

    def _sweep(self, round_index: int, seed: int) -> Iterator[FloverCase]:
        for gap_s in self.size.gaps_s:
            first = gap_s == self.size.gaps_s[0]
            if round_index and not first:
                continue
            times = poisson(REQUESTS, gap_s, seed)
            load = self.loads.make(swept(gap_s), times, uniform(REQUESTS, *self.size.sweep, seed), seed)
            others = {INSTANCES: self.run.forms[INSTANCES]} if gap_s in self.size.instances_s else {}
            yield FloverCase(
                load.name, load, {TIDAL: TIDAL, **others, **(self._all_peers() if first and round_index == 0 else {})}
            )

    def _lengths(self, round_index: int, seed: int) -> Iterator[FloverCase]:
        for most in self.size.mosts:
            if round_index and most != self.size.mosts[-1]:
                continue
            wanted = uniform(REQUESTS, self.size.least, most, seed)
            times = poisson(REQUESTS, self.size.gaps_s[0], seed)
            load = self.loads.make(random_lengths(self.size.least, most), times, wanted, seed)
            # The paper's 23 times: with the shortest, for instances take longest.
            others = {INSTANCES: self.run.forms[INSTANCES]} if most < self.size.mosts[-1] else {}
            yield FloverCase(load.name, load, {TIDAL: TIDAL, UNSHUFFLED: UNSHUFFLED, **others})
        if round_index == 0 and self.data is not None:
            wanted = recorded(REQUESTS, self.size.tokens, seed, self.data)
            load = self.loads.make("recorded lengths", poisson(REQUESTS, _CONSTANT_S, seed), wanted, seed)
            yield FloverCase(load.name, load, {TIDAL: TIDAL, **self._peers()})

    def _constant(self, seed: int) -> Iterator[FloverCase]:
        """Figure 7: all strategies with one request every 500 ms."""
        engine = self.run.forms[BATCHES].settings["engine"]
        formed = [batches(engine, window_s=window_s) for window_s in self.size.windows_s]
        formed += [batches(engine, most=most) for most in self.size.fixed]
        times = constant(REQUESTS, _CONSTANT_S)
        load = self.loads.make(CONSTANT, times, uniform(REQUESTS, *self.size.sweep, seed), seed)
        strategies = {form.label: form for form in formed}
        yield FloverCase(
            load.name, load, {TIDAL: TIDAL, INSTANCES: self.run.forms[INSTANCES], **strategies, **self._peers()}
        )


CONSTANT = "constant, 500 ms"


def texts(least: int, most: int) -> str:
    """Describe the lengths of texts."""
    return f"{most} tokens" if least == most else f"{random_lengths(least, most)} tokens"


def together(count: int) -> str:
    """Name of the case of simultaneous requests."""
    return f"{count} at once"


def swept(gap_s: float) -> str:
    """Name of the case of a mean gap λ."""
    return f"λ {gap_s * 1e3:g} ms"


def random_lengths(least: int, most: int) -> str:
    """Name of the case of random numbers of tokens."""
    return f"U({least}, {most})"
