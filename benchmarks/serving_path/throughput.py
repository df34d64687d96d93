"""Closed-loop throughput against the bare model, whose parameters are searched first."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from benchmarks.closed_loop import LoopResult, closed_loop
from benchmarks.report import progress
from benchmarks.texts import TextMaker, tweet_lengths
from tidal.server.child import RunningServer


@dataclass(frozen=True, slots=True)
class BareConfig:
    """One way to run the bare model."""

    instances: int
    threads: int
    max_batch: int
    delay_us: int = 0  # how long Triton's batcher waits for a fuller batch
    padded_length: int | None = None  # pad every text to this length, on an engine of static shape
    pinned: bool = False  # bind each instance to a core of its own

    @property
    def model(self) -> str:
        """Its name in the repository."""
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


CANDIDATES = tuple(BareConfig(n, 2 // n, batch) for n in (1, 2) for batch in (1, 8, 32))
# Which search result stands for which concurrency: each is compared with the best bare model for it.
_SEARCHED = (1, 8, 64)


def search(
    server: RunningServer, maker: TextMaker, data: Path | None, *, seconds: float
) -> tuple[dict[int, BareConfig], list[list[str]]]:
    """The fastest candidate for each searched concurrency, on lengths and texts that are not measured later.

    Candidates are loaded one at a time. Returns the winners and a table row for each candidate.
    """
    speeds: dict[BareConfig, dict[int, float]] = {}
    for candidate in CANDIDATES:
        progress(f"searching the bare model's parameters: {candidate.model}")
        server.control.load(candidate.model, None)
        speeds[candidate] = {}
        for concurrency in _SEARCHED:
            lengths, _ = tweet_lengths(round(600 * seconds), seed=90 + concurrency, data=data)
            texts = [maker.text(n) for n in lengths]
            closed_loop(server, candidate.model, texts[: concurrency * 2], concurrency=concurrency, seconds=5)
            result = closed_loop(
                server, candidate.model, texts[concurrency * 2 :], concurrency=concurrency, seconds=seconds
            )
            speeds[candidate][concurrency] = result.per_second
        server.control.unload(candidate.model)
    best = {c: max(CANDIDATES, key=lambda candidate: speeds[candidate][c]) for c in _SEARCHED}
    rows = [[candidate.model, *(f"{speeds[candidate][c]:.0f}" for c in _SEARCHED)] for candidate in CANDIDATES]
    return best, rows


def bare_for(best: dict[int, BareConfig], concurrency: int) -> BareConfig:
    """The bare model to compare with at a concurrency: the best of the nearest searched one."""
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
    """Median ratio of answers a second (Tidal / bare) over rounds in turn, and both systems' results by round."""
    ours, theirs = [], []
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
