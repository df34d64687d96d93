"""Comparison of the server's routes with those that are computed offline."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.tabi.offline import route_offline
from benchmarks.tabi.tasks import TaskQueries
from testing.cascades import OpenLevel
from tidal.server.child import RunningServer
from tidal.tabi.manifest import TabiManifest
from tidal_client import AsyncClient
from tidal_client.load import text_inputs

_CONCURRENCY = 8


@dataclass(frozen=True, slots=True)
class RouteEquality:
    """Equality of routes.

    Attributes:
        queries: Number of queries.
        equal: Number of queries with the same levels, the same label and the same words at the last level.
        max_abs_error: Largest difference of a probability of these.
    """

    queries: int
    equal: int
    max_abs_error: float


def measure(
    server: RunningServer,
    model: str,
    version: int,
    manifest: TabiManifest,
    levels: Sequence[OpenLevel],
    queries: TaskQueries,
    rows: Sequence[int],
) -> RouteEquality:
    """Send queries to a cascade, several at a time, and compute each one's route again without the server.

    Args:
        server: Running server.
        model: Name of the cascade.
        version: Version of the cascade.
        manifest: Manifest of the cascade.
        levels: Levels in the manifest's order.
        queries: Queries of the task.
        rows: Indices of the queries to send.
    """
    inputs = text_inputs(*([list(column) for column in zip(*queries.texts, strict=True)]))
    names = [f"equal-{place}-{row}" for place, row in enumerate(rows)]
    read = ["pruned_text", "pruned_pair"] if manifest.pairs else ["pruned_text"]
    outputs = ["label", "level", "probabilities", *read]
    answers = asyncio.run(_send(server.grpc, model, [inputs[row] for row in rows], names, outputs))
    candidate = manifest.candidates[manifest.chosen]
    equal, error = 0, 0.0
    for name, row, answer in zip(names, rows, answers, strict=True):
        wanted = route_offline(queries.texts[row], name, manifest, candidate, version, levels)
        texts = tuple(answer[name].item().decode() for name in read)
        found = answer["label"].item().decode(), int(answer["level"].item()), texts
        same = found == (wanted.label, wanted.level, wanted.texts)
        equal += same
        if same:
            error = max(error, float(np.abs(answer["probabilities"].ravel() - wanted.probabilities).max()))
    return RouteEquality(len(rows), equal, error)


async def _send(
    url: str, model: str, inputs: Sequence[Mapping[str, Any]], names: Sequence[str], outputs: list[str]
) -> list[dict[str, Any]]:
    limit = asyncio.Semaphore(_CONCURRENCY)
    async with AsyncClient(url, timeout_s=60) as client:

        async def one(tensors: Mapping[str, Any], name: str) -> dict[str, Any]:
            async with limit:
                return await client.infer(model, tensors, outputs=outputs, request_id=name)

        return list(await asyncio.gather(*(one(*each) for each in zip(inputs, names, strict=True))))
