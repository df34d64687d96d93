"""The peer's side: pipelines of OpenVINO GenAI in a process of its environment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.flover.peers.requests import Request, Timeline
from benchmarks.flover.peers.worker_process import Worker

_WHOLE = 16_384


@dataclass(frozen=True, slots=True)
class GenAiSettings:
    """Settings of a pipeline.

    Attributes:
        kv: Type of keys and values: `bf16`, or `u8`, OpenVINO's default.
        chunk: Largest number of tokens of a pass.
        split: Whether a prompt may be computed in several passes beside decode steps.
        prefixes: Whether prompts reuse the blocks of equal prefixes.
        cache_gb: Memory of keys and values in GiB.
    """

    kv: str
    chunk: int
    split: bool
    prefixes: bool = False
    cache_gb: int = 3

    def __str__(self) -> str:
        passes = f"chunks of {self.chunk}" if self.split else "whole prompts"
        return f"keys and values {self.kv}, {passes}"

    def reusing(self) -> GenAiSettings:
        """Return the same with prefixes reused."""
        return replace(self, prefixes=True)


#: What is searched; OpenVINO's default is u8 and chunks of 256.
SETTINGS = tuple(
    GenAiSettings(kv, chunk, split)
    for kv in ("u8", "bf16")
    for chunk, split in ((256, True), (1024, True), (_WHOLE, False))
)


@dataclass(frozen=True)
class GenAiSide:
    """An open pipeline."""

    worker: Worker
    number: int

    def run(self, requests: Sequence[Request], until: int | None = None) -> Timeline:
        """See `Side`."""
        listed = [{"prompt": list(each.prompt), "tokens": each.tokens, "at": each.at} for each in requests]
        found = self.worker.call("run", number=self.number, requests=listed, until=until)
        first = [tokens[0] if tokens else -1 for tokens in found["tokens"]]
        return Timeline([each.at for each in requests], found["times"], first, found["cache"])


@contextmanager
def opened(worker: Worker, folder: Path, settings: GenAiSettings, threads: int) -> Iterator[GenAiSide]:
    """Open a pipeline for the block."""
    number = worker.call("open", folder=str(folder), **asdict(settings), threads=threads)
    try:
        yield GenAiSide(worker, number)
    finally:
        worker.call("close", number=number)
