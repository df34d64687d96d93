"""Closed-loop throughput, compared with the bare model with its best parameters."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from benchmarks.closed_loop import LoopResult, closed_loop
from benchmarks.report import progress
from benchmarks.serving_path.prepare import MAX_BATCH
from benchmarks.texts import TextMaker, tweet_lengths
from tidal.server.child import RunningServer


@dataclass(frozen=True, slots=True)
class BareConfig:
    """Configuration of the bare model.

    Attributes:
        instances: Number of instances.
        threads: Number of engine threads per instance.
        max_batch: Maximum batch size of Triton's dynamic batcher.
        delay_us: Maximum queue delay of Triton's dynamic batcher.
        padded_length: Length that every text is padded to, on an engine of static shape; None pads to the longest
            text of the batch.
        pinned: Whether each instance is bound to a core of its own.
    """

    instances: int
    threads: int
    max_batch: int
    delay_us: int = 0
    padded_length: int | None = None
    pinned: bool = False

    @property
    def model(self) -> str:
        """Name of the model in the repository."""
        delay = f"_delay{self.delay_us}" if self.delay_us else ""
        padded = f"_padded{self.padded_length}" if self.padded_length else ""
        pinned = "_pinned" if self.pinned else ""
        return f"bare_{self.instances}x{self.threads}_batch{self.max_batch}{delay}{padded}{pinned}"

    def write(self, repository: Path, version_dir: Path) -> None:
        """Add the model to a repository."""
        folder = repository / self.model
        (folder / "1").mkdir(parents=True)
        source = Path(__file__).with_name("bare_model.py").read_text()
        (folder / "1" / "model.py").write_text(source)
        given = {"version_dir": version_dir, "threads": self.threads}
        if self.padded_length:
            given["padded_length"] = self.padded_length
        if self.pinned:
            given["pinned"] = True
        parameters = "".join(
            f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in given.items()
        )
        delay = f" max_queue_delay_microseconds: {self.delay_us} " if self.delay_us else ""
        batching = f"dynamic_batching {{{delay}}}\n" if self.max_batch > 1 else ""
        (folder / "config.pbtxt").write_text(
            f'backend: "python"\nmax_batch_size: {self.max_batch}\n'
            'input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }\n'
            'output { name: "logits" data_type: TYPE_FP32 dims: [ -1 ] }\n'
            'output { name: "label" data_type: TYPE_STRING dims: [ 1 ] }\n'
            f"instance_group {{ kind: KIND_CPU count: {self.instances} }}\n{batching}{parameters}"
        )


CANDIDATES = tuple(BareConfig(n, 2 // n, batch) for n in (1, 2) for batch in (1, 8, MAX_BATCH))
# Concurrencies that the search runs at; other ones use the result of the nearest.
_SEARCHED = (1, 8, 64)


def search(
    server: RunningServer, maker: TextMaker, data: Path | None, *, seconds: float
) -> tuple[dict[int, BareConfig], list[list[str]]]:
    """Find the fastest candidate for each searched concurrency, on other lengths and texts than those measured later.

    Candidates are loaded one at a time.

    Returns:
        Fastest candidate by concurrency, and a table row per candidate.

    Raises:
        RuntimeError: A candidate failed requests, so that its speed means nothing.
    """
    speeds: dict[BareConfig, dict[int, float]] = {}
    for candidate in CANDIDATES:
        progress(f"parameter search of the bare model: {candidate.model}")
        server.control.load(candidate.model, None)
        speeds[candidate] = {}
        for concurrency in _SEARCHED:
            lengths, _ = tweet_lengths(round(600 * seconds), seed=90 + concurrency, data=data)
            texts = [maker.text(n) for n in lengths]
            closed_loop(server, candidate.model, texts[: concurrency * 2], concurrency=concurrency, seconds=5)
            result = closed_loop(
                server, candidate.model, texts[concurrency * 2 :], concurrency=concurrency, seconds=seconds
            )
            if result.failed:
                raise RuntimeError(f"{candidate.model} failed {result.failed} requests at {concurrency} in flight")
            speeds[candidate][concurrency] = result.per_second
        server.control.unload(candidate.model)
    best = {c: max(CANDIDATES, key=lambda candidate: speeds[candidate][c]) for c in _SEARCHED}
    rows = [[candidate.model, *(f"{speeds[candidate][c]:.0f}" for c in _SEARCHED)] for candidate in CANDIDATES]
    return best, rows


def bare_for(best: dict[int, BareConfig], concurrency: int) -> BareConfig:
    """Return the bare model to compare with: the fastest at the nearest searched concurrency."""
    return best[min(best, key=lambda searched: abs(searched.bit_length() - concurrency.bit_length()))]


def compare(
    server: RunningServer,
    model: str,
    bare: BareConfig,
    maker: TextMaker,
    data: Path | None,
    *,
    concurrency: int,
    rounds: int,
    seconds: float,
) -> tuple[float, list[LoopResult], list[LoopResult]]:
    """Measure both systems alternately.

    Returns:
        Median over the rounds of Tidal's answers per second over the bare model's, and the results of each by round.
    """
    ours, theirs = list[LoopResult](), list[LoopResult]()
    for turn in range(rounds):
        lengths, _ = tweet_lengths(round(600 * seconds), seed=concurrency * 100 + turn, data=data)
        texts = {name: [maker.text(n) for n in lengths] for name in (model, bare.model)}
        pair = [(model, ours), (bare.model, theirs)]
        for name, results in pair if turn % 2 == 0 else reversed(pair):
            warm = [maker.text(n) for n in lengths[: concurrency * 2]]
            closed_loop(server, name, warm, concurrency=concurrency, seconds=5)
            results.append(closed_loop(server, name, texts[name], concurrency=concurrency, seconds=seconds))
    ratio = statistics.median(a.per_second / b.per_second for a, b in zip(ours, theirs, strict=True))
    return ratio, ours, theirs
