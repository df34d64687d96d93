"""The time that serving adds to the levels' engines, as a cascade's manifest has it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from pydantic import Field

from tidal.manifest import Strict


class EscalationOverhead(Strict):
    """The time that re-routing a query from one level to another adds to the engines' time."""

    below: str = Field(description="name of the level that the query leaves")
    above: str = Field(description="name of the level that the query is re-routed to")
    ms: float = Field(ge=0, description="milliseconds without word pruning")
    pruned_ms: float | None = Field(
        None, ge=0, description="milliseconds with word pruning; None if the level below gives no `attention_received`"
    )


class ServingOverhead(Strict):
    """The time that serving adds to the levels' engines, measured through a server with one query at a time."""

    processor: str = Field(description="name of the processor that it was measured on")
    queries: int = Field(ge=1, description="number of queries behind each figure")
    alone_ms: dict[str, float] = Field(
        description="by name of a level: milliseconds added to a query that it answers, from the client's call to the "
        "answer: transport, tokenisation, queues and threads"
    )
    onward: tuple[EscalationOverhead, ...] = Field(description="one entry for each pair of levels")
    engine_scale: dict[str, float] = Field(
        description="by name of a level: time of its engine while the server ran, divided by its time when the level's "
        "answers were collected; the engines' times are multiplied by it"
    )

    def added(self, levels: Sequence[str], *, pruned: bool) -> tuple[float, ...]:
        """Return the milliseconds that serving adds to the engine's time of each level of a cascade.

        Args:
            levels: Names of the levels in the order in which they run.
            pruned: Whether the cascade prunes words.
        """
        hops = {(each.below, each.above): each for each in self.onward}
        added = [self.alone_ms[levels[0]]]
        for pair in itertools.pairwise(levels):
            hop = hops[pair]
            added.append(hop.pruned_ms if pruned and hop.pruned_ms is not None else hop.ms)
        return tuple(added)
