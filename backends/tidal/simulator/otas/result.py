"""What a simulated run gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tidal.otas.policies import Batch, Query

Floats = npt.NDArray[np.float64]


@dataclass
class OtasResult:
    """One run of one policy: what became of every query.

    A right answer is a share of a query, its task's accuracy at γ, rather than drawn at random; so utility is what is
    expected.

    Attributes:
        queries: that came.
        offered: their utility in sum.
        right: in time and right (type 1 of §V).
        wrong: in time but wrong (type 2).
        late: executed, but after the deadline (type 3).
        evicted: not executed (type 4).
        utility: earned, in sum.
        earned_by_second: the same by the second of the answer.
        by_gamma: queries executed, by γ.
        batches: executed.
        accuracies: mean accuracy of each batch.
        busy_s: seconds in which the engine ran.
        ended: when the last batch did, seconds.
    """

    queries: int = 0
    offered: float = 0.0
    right: float = 0.0
    wrong: float = 0.0
    late: int = 0
    evicted: int = 0
    utility: float = 0.0
    earned_by_second: dict[int, float] = field(default_factory=dict)
    by_gamma: dict[int, int] = field(default_factory=dict)
    batches: int = 0
    accuracies: list[float] = field(default_factory=list)
    busy_s: float = 0.0
    ended: float = 0.0

    def came(self, query: Query) -> None:
        """A query has arrived."""
        self.queries += 1
        self.offered += query.utility

    def ran(self, batch: Batch, accuracy: Mapping[str, float], started: float, ended: float) -> None:
        """A batch has run; accuracies are at its γ, by task."""
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
        second = int(ended)
        self.earned_by_second[second] = self.earned_by_second.get(second, 0.0) + earned
        self.by_gamma[batch.gamma] = self.by_gamma.get(batch.gamma, 0) + len(batch.queries)
        self.batches += 1
        self.accuracies.append(total / len(batch.queries))
        self.busy_s += ended - started
        self.ended = ended

    @property
    def shares(self) -> tuple[float, float, float, float]:
        """Of all queries, the types 1 to 4 of §V."""
        number = max(self.queries, 1)
        return self.right / number, self.wrong / number, self.late / number, self.evicted / number

    def earned_until(self, seconds: int) -> Floats:
        """Utility earned until the end of each of the first seconds."""
        return np.cumsum([self.earned_by_second.get(second, 0.0) for second in range(seconds)])
