"""Result of a simulated run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidal.otas.policies import Batch, Query


@dataclass
class OtasResult:
    """Result of one run of one policy.

    Correctness is not drawn at random: each query counts as correct by its task's accuracy at γ, so utilities are
    expected values.

    Attributes:
        queries: Number of queries that arrived.
        offered: Total utility of these queries.
        right: Queries answered in time and correctly (type 1 of §V).
        wrong: Queries answered in time but incorrectly (type 2).
        late: Queries executed after their deadline (type 3).
        evicted: Queries not executed (type 4).
        utility: Total utility earned.
        by_gamma: Executed queries, by γ.
        batches: Number of executed batches.
        accuracies: Mean accuracy of each batch.
        busy_s: Time in which the engine ran, in seconds.
        ended: End of the last batch, in seconds.
    """

    queries: int = 0
    offered: float = 0.0
    right: float = 0.0
    wrong: float = 0.0
    late: int = 0
    evicted: int = 0
    utility: float = 0.0
    by_gamma: dict[int, int] = field(default_factory=dict)
    batches: int = 0
    accuracies: list[float] = field(default_factory=list)
    busy_s: float = 0.0
    ended: float = 0.0

    def came(self, query: Query) -> None:
        """Record a query that arrived."""
        self.queries += 1
        self.offered += query.utility

    def ran(self, batch: Batch, accuracy: Mapping[str, float], started: float, ended: float) -> None:
        """Record a batch that ran.

        Args:
            batch: Batch that ran.
            accuracy: Accuracy at the batch's γ, by task.
            started: Start in seconds.
            ended: End in seconds.
        """
        right = earned = total = 0.0
        for query in batch.queries:
            share = accuracy[query.task]
            total += share
            if ended > query.deadline:
                self.late += 1
                continue
            right += share
            self.wrong += 1 - share
            earned += query.utility * share
        self.right += right
        self.utility += earned
        self.by_gamma[batch.gamma] = self.by_gamma.get(batch.gamma, 0) + len(batch.queries)
        self.batches += 1
        self.accuracies.append(total / len(batch.queries))
        self.busy_s += ended - started
        self.ended = ended

    @property
    def shares(self) -> tuple[float, float, float, float]:
        """Shares of the types 1 to 4 of §V among all queries."""
        number = max(self.queries, 1)
        return self.right / number, self.wrong / number, self.late / number, self.evicted / number
