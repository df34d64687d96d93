"""BERT-base under load in one process: one engine for the longest input, one dynamic engine, and Arlo's policy."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from benchmarks.gpu.encoder import Batch, batch_of, open_encoder, size_of, tweet_like_lengths
from benchmarks.gpu.lengths import DRY_LENGTHS, LENGTHS, MAX_BATCH, PRECISION
from benchmarks.gpu.recording import Record, Setting, run_ms
from tidal.arlo.policies import ArloQuery, PolymorphicPolicy
from tidal.engines import Engine
from tidal.profiles import LatencyProfile

LOADS = (40, 70, 90)


class System(NamedTuple):
    """A way to serve queries of all lengths on one GPU.

    Attributes:
        engines: Engine by the length that it pads to; a single entry if it is dynamic.
        profile: Latency of its engines, measured.
        static: Whether batches are padded to the length of their engine.
    """

    engines: Mapping[int, Engine]
    profile: LatencyProfile
    static: bool

    def policy(self) -> PolymorphicPolicy:
        """Return Tidal's policy for one lane of this system."""
        lengths = self.profile.lengths
        longest = lengths[-1] if self.static else 0
        return PolymorphicPolicy(tuple(self.engines), self.profile, static_upto=longest, max_batch=MAX_BATCH)


def measure(setting: Setting, record: Record) -> None:
    """Measure the mean latency at each load; claims `gpu_arlo_mean_vs_dt[load]`."""
    lengths: tuple[int, ...] = setting.choose(LENGTHS, DRY_LENGTHS)
    static = {length: open_encoder(setting, PRECISION, length=length) for length in lengths}
    dynamic = {lengths[-1]: open_encoder(setting, PRECISION, length=None)}
    longest = {lengths[-1]: static[lengths[-1]]}
    systems = {
        "ST": System(longest, _profile(setting, longest, lengths[-1:], padded=True), True),
        "DT": System(dynamic, _profile(setting, dynamic, lengths, padded=False), False),
        "Arlo": System(static, _profile(setting, static, lengths, padded=True), True),
    }
    size, count = size_of(setting), setting.choose(4000, 20)
    capacities = {name: _capacity(setting, system) for name, system in systems.items()}
    record.put("capacity, queries/s", capacities)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for load in LOADS:
        # Seconds of the run are bounded by the number of queries.
        rate = capacities["DT"] * load / 100
        queries = min(count, max(20, round(rate * setting.choose(4, 0.2))))
        wanted = tweet_like_lengths(queries, size.longest, seed=load)
        arrivals = np.cumsum(np.random.default_rng(load).exponential(1 / rate, queries))
        for name, system in systems.items():
            if capacities[name] < rate:
                continue  # a queue that grows measures the length of the run
            taken = serve(setting, system, wanted, arrivals.tolist())
            found.setdefault(str(load), {})[name] = {
                "mean_ms": statistics.mean(taken),
                "p98_ms": float(np.percentile(taken, 98)),
            }
            record.put("latency by load", found)
        cells = found.get(str(load), {})
        if "DT" in cells and "Arlo" in cells:
            record.claim(f"gpu_arlo_mean_vs_dt[{load}]", cells["Arlo"]["mean_ms"] / cells["DT"]["mean_ms"])
        rows = [
            [
                at,
                *(
                    f"{own[name]['mean_ms']:.2f} / {own[name]['p98_ms']:.2f}" if name in own else "overloaded"
                    for name in systems
                ),
            ]
            for at, own in found.items()
        ]
        record.table("BERT-base fp16 under load, ms, mean / p98; loads in % of DT's capacity", ["load", *systems], rows)


def serve(setting: Setting, system: System, lengths: list[int], arrivals: list[float]) -> list[float]:
    """Serve queries that arrive at given seconds, and return their latencies in milliseconds."""
    size, policy = size_of(setting), system.policy()
    batches: dict[tuple[int, ...], Batch] = {}
    latencies: list[float] = []
    sent = 0
    start = time.perf_counter()
    while len(latencies) < len(lengths):
        now = time.perf_counter() - start
        while sent < len(lengths) and arrivals[sent] <= now:
            policy.submit(ArloQuery(lengths[sent], arrivals[sent]))
            sent += 1
        batch = policy.next_batch(now)
        if batch is None:
            continue  # spins: sleeping would add its own latency to queries of a millisecond
        own = [query.length for query in batch.queries]
        runtime = list(system.engines)[batch.runtime]
        key = (runtime if system.static else max(own), *own)
        inputs = batches.setdefault(key, batch_of(size, own, key[0]))
        system.engines[runtime].run(inputs)
        ended = time.perf_counter() - start
        policy.finished(batch, ended - now)
        latencies += [(ended - query.arrival) * 1e3 for query in batch.queries]
    return latencies


def _profile(
    setting: Setting, engines: Mapping[int, Engine], lengths: tuple[int, ...], *, padded: bool
) -> LatencyProfile:
    batches = (1, 2, 4, MAX_BATCH)
    size, grid = size_of(setting), []
    for length in lengths:
        engine = engines[length] if padded else next(iter(engines.values()))
        if padded:
            for rows in range(1, MAX_BATCH + 1):  # captures all that traffic will use
                engine.run(batch_of(size, [length] * rows))
        grid.append([run_ms(setting, engine, batch_of(size, [length] * rows), seconds=0.05) for rows in batches])
    # Never faster with more rows or tokens, as profiles require nothing else of noise.
    table = np.maximum.accumulate(np.maximum.accumulate(np.array(grid), axis=0), axis=1)
    rows_ms = tuple(tuple(float(value) for value in row) for row in table)
    return LatencyProfile(lengths=lengths, batches=batches, median_ms=rows_ms, p95_ms=rows_ms, threads=1)


def _capacity(setting: Setting, system: System) -> float:
    """Return the queries per second that a system answers if all of them wait."""
    count: int = setting.choose(400, 16)
    lengths = tweet_like_lengths(count, size_of(setting).longest, seed=3)
    began = time.perf_counter()
    serve(setting, system, lengths, [0.0] * count)
    return count / (time.perf_counter() - began)
