"""One query at a time, each after the answer to the one before (Tabi §7.1)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.tabi.tasks import TaskQueries
from benchmarks.usage import Usage
from tidal.server.child import RunningServer
from tidal_client import Client
from tidal_client.load import text_inputs

# The systems alternate after so many queries, so that other work on the machine affects all of them.
_BLOCK = 40
_WARM_UP = 4
_PAUSE_S = 0.02


@dataclass(slots=True)
class SerialResult:
    """One system in one round: indices of the queries, with the latency, the label and the last level of each."""

    queries: list[int] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    levels: list[int] = field(default_factory=list)
    server: float = 0.0  # share of the cores that the server used
    others: float = 0.0  # share of the cores that other work used

    def percentile(self, percent: float) -> float:
        """Return a percentile of the latency, milliseconds."""
        return float(np.percentile(self.latencies_ms, percent))

    @property
    def mean_ms(self) -> float:
        """Mean latency, milliseconds."""
        return float(np.mean(self.latencies_ms))


def measure(
    server: RunningServer,
    models: Mapping[str, str],
    cascades: set[str],
    queries: TaskQueries,
    rows: Sequence[int],
    *,
    round_number: int,
) -> dict[str, SerialResult]:
    """Send the same queries to every system, one at a time, alternating between the systems block by block.

    Args:
        server: Running server with all models loaded.
        models: Name of the model by system.
        cascades: Names of the systems that return the level.
        queries: Queries of the task. A query has one request id for all systems, and another one in the next round,
            so that its draws are the same in all systems and differ between rounds.
        rows: Indices of the queries to send, in this order.
        round_number: Number of the round.
    """
    inputs = text_inputs(*([list(column) for column in zip(*queries.texts, strict=True)]))
    found = {system: SerialResult() for system in models}
    usages = {system: Usage() for system in models}
    order = list(models)
    with Client(server.grpc, timeout_s=60) as client:
        for number, start in enumerate(range(0, len(rows), _BLOCK)):
            block = rows[start : start + _BLOCK]
            shift = (number + round_number) % len(order)
            for system in order[shift:] + order[:shift]:
                model, result = models[system], found[system]
                outputs = ["label", "level"] if system in cascades else ["label"]
                time.sleep(_PAUSE_S)
                for row in block[:_WARM_UP]:
                    client.infer(model, inputs[row], outputs=outputs, request_id=f"warm-{row}")
                with usages[system].watch(server):
                    for row in block:
                        begin = time.perf_counter()
                        answer = client.infer(
                            model, inputs[row], outputs=outputs, request_id=request_id(round_number, row)
                        )
                        result.latencies_ms.append(round((time.perf_counter() - begin) * 1e3, 4))
                        result.queries.append(row)
                        result.labels.append(answer["label"].item().decode())
                        result.levels.append(int(answer["level"].item()) if "level" in answer else 0)
    for system, result in found.items():
        result.server, result.others = usages[system].server, usages[system].others
    return found


def request_id(round_number: int, row: int) -> str:
    """Return the request id, which seeds a query's draws in a round."""
    return f"round-{round_number}-query-{row}"
