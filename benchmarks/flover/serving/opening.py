"""Creates a baseline from the parameters of its model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from benchmarks.flover.serving.batches import Batches
from benchmarks.flover.serving.engines import Engine, OpenVinoEngine, TidalEngine, TransformersEngine
from benchmarks.flover.serving.genai_peer import GenAiBatching
from benchmarks.flover.serving.instances import Instances
from benchmarks.flover.serving.outbox import GenerationJob
from benchmarks.flover.serving.transformers_peer import TransformersBatching


class GenerationSystem(Protocol):
    """A baseline: accepts requests, and adds their tokens from its own threads."""

    @property
    def calls(self) -> int:
        """Number of passes so far."""

    def submit(self, job: GenerationJob) -> None:
        """Accept a request; does not block."""

    def close(self) -> None:
        """Stop."""


def open_system(given: Mapping[str, str]) -> GenerationSystem:
    """Create the baseline named by a model's parameters, see `benchmarks.flover.systems`."""
    number = {name: int(value) for name, value in given.items() if value.isdecimal()}
    precision, threads = given["precision"], number["threads"]
    match given["system"]:
        case "instances":
            return Instances(_engine(given, workers=number["most"], rows=1), number["most"])
        case "batches":
            window_s = float(given["window_s"]) if "window_s" in given else None
            return Batches(_engine(given, workers=1, rows=number["most"]), number["most"], window_s)
        case "transformers":
            return TransformersBatching(
                Path(given["source"]),
                precision,
                threads=threads,
                page=number["page"],
                most=number["most"],
                longest=number["longest"],
                batch_tokens=number["batch_tokens"],
            )
        case "genai":
            return GenAiBatching(
                Path(given["extra"]),
                Path(given["graph"]),
                precision,
                threads=threads,
                cache_gb=number["cache_gb"],
                batch_tokens=number["batch_tokens"],
                split=given["split"] == "yes",
            )
    raise ValueError(f"unknown system '{given['system']}'; accepted: instances, batches, transformers, genai")


def _engine(given: Mapping[str, str], *, workers: int, rows: int) -> Engine:
    precision, threads = given["precision"], int(given["threads"])
    match given["engine"]:
        case "openvino":
            from benchmarks.flover.export import GRAPH

            graph = Path(given["graph"]) / GRAPH
            return OpenVinoEngine(graph, precision, threads=threads, streams=int(given["streams"]))
        case "tidal":
            return TidalEngine(Path(given["version"]), threads=threads, workers=workers, rows=rows)
        case "transformers":
            return TransformersEngine(Path(given["source"]), precision, threads=threads)
    raise ValueError(f"unknown engine '{given['engine']}'; accepted: openvino, tidal, transformers")
