"""The predicted time of a batch that grows by one query at a time."""

from __future__ import annotations

from tidal.pets.policies.base import PetsQuery
from tidal.pets.profile import Tables

# Longest query and sum of the lengths, in tokens, and number of queries.
_Extent = tuple[int, int, int]
_NONE: _Extent = 0, 0, 0


class GrowingBatch:
    """A batch with its predicted time (PetS Eq. 2).

    Args:
        tables: Costs of the base and of tasks' terms.
        terms: Whether its tasks' terms cost anything: on a merged copy they do not.

    Attributes:
        queries: Its queries, in the order in which they were added.
    """

    def __init__(self, tables: Tables, *, terms: bool = True) -> None:
        self.queries: list[PetsQuery] = []
        self._tables, self._has_terms = tables, terms
        self._extent, self._of_task = _NONE, dict[str, _Extent]()
        self._terms_s = 0.0

    def seconds_with(self, query: PetsQuery) -> float:
        """Return its predicted time in seconds with one more query; infinite if it is not permitted then."""
        grown = _grown(self._extent, query)
        return self._terms_with(query) + float(self._tables.shared[self._tables.length_of(*grown), grown[2]])

    def add(self, query: PetsQuery) -> None:
        """Add a query."""
        self._terms_s = self._terms_with(query)
        self._extent = _grown(self._extent, query)
        self._of_task[query.task] = _grown(self._of_task.get(query.task, _NONE), query)
        self.queries.append(query)

    def _terms_with(self, query: PetsQuery) -> float:
        if not self._has_terms:
            return 0.0
        kind, own = self._tables.kind(query.kind), self._of_task.get(query.task, _NONE)
        return self._terms_s + self._terms_of(kind, _grown(own, query)) - self._terms_of(kind, own)

    def _terms_of(self, kind: int, extent: _Extent) -> float:
        return float(self._tables.terms[kind, self._tables.length_of(*extent), extent[2]]) if extent[2] else 0.0


def _grown(extent: _Extent, query: PetsQuery) -> _Extent:
    longest, tokens, queries = extent
    return max(longest, query.length), tokens + query.length, queries + 1
