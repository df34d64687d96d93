"""Latency of one query at a time: in process, over gRPC and over HTTP."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.texts import TextMaker
from tidal.arlo.model import open_model
from tidal.encoder_tasks.reader import read_rows
from tidal.server.child import RunningServer
from tidal_client import Client

TOKENS = 25


def measure(
    server: RunningServer, model: str, bare: str, version_dir: Path, *, rounds: int, queries: int
) -> dict[str, list[float]]:
    """Return the median latency in ms by path, one value per round.

    The paths alternate, and use the same text lengths and the same gaps between queries.

    Args:
        server: Running server.
        model: Name of Tidal's model.
        bare: Name of a synchronous Python-backend model around the same engine: the least overhead of that backend.
        version_dir: Version folder of the model.
        rounds: Number of rounds.
        queries: Number of queries per path and round.
    """
    opened = open_model(version_dir)
    maker = TextMaker(version_dir / opened.manifest.tokenizer.file, seed=1)
    runtimes = [runtime.max_length for runtime in opened.manifest.runtimes]
    runtime = next(i for i, n in enumerate(runtimes) if n >= TOKENS)

    def in_process(text: str) -> str:
        rows = read_rows({"text_input": np.array([[text.encode()]], object)}, opened.tokenizer)
        return opened.manifest.labels[int(opened.run(0, runtime, rows)["logits"][0].argmax())]

    outputs = ["label", "logits"]
    medians: dict[str, list[float]] = {}
    with Client(server.grpc) as grpc, Client(server.http) as http:
        paths: dict[str, Callable[[str], object]] = {
            "in process": in_process,
            "grpc": lambda text: grpc.classify(model, text, outputs=outputs),
            "grpc, bare model": lambda text: grpc.classify(bare, text, outputs=outputs),
            "http": lambda text: http.classify(model, text, outputs=outputs),
        }
        for turn in range(rounds):
            for name, call in paths.items():
                rng = random.Random(turn)  # the same gaps for every path
                for _ in range(5):
                    call(maker.text(TOKENS))
                took = []
                for _ in range(queries):
                    text = maker.text(TOKENS)
                    time.sleep(rng.uniform(0.002, 0.012))
                    start = time.perf_counter()
                    call(text)
                    took.append((time.perf_counter() - start) * 1e3)
                medians.setdefault(name, []).append(statistics.median(took))
    return medians
