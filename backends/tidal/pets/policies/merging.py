"""Whether tasks gain by sharing a pass (PetS Inequality 1), and which hot tasks run from merged copies instead.

A copy of the base with a task's terms merged into its weights runs without task operators, but serves that task only.
With few tasks, the operators cost more than sharing saves (§6.2.3, §7).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from tidal.pets.policies.batching import alpha_only, joint
from tidal.pets.policies.pool import Pool, total_seconds
from tidal.pets.profile import FloatTable, Tables


def saved_by_sharing(pool: Pool, tables: Tables, unmergeable: Collection[str] = ()) -> float:
    """Seconds saved if tasks share passes, compared with every task on a merged copy; negative if copies are faster.

    Inequality 1, Σβ + α(T) < Σα(1), for any number of queries per task and any lengths, with the best batches for both.

    Args:
        pool: Waiting queries.
        tables: Costs of the base and of tasks' terms.
        unmergeable: Kinds whose terms cannot be merged into weights: their copies have the cost β too.
    """
    bare = tables.without_terms(unmergeable)
    copies = 0.0
    for task in np.unique(pool.tasks):
        own = pool.take(np.flatnonzero(pool.tasks == task))
        copies += total_seconds(own, alpha_only(own, bare), bare)
    return copies - total_seconds(pool, joint(pool, tables), tables)


def crossover(
    tables: Tables,
    kinds: Sequence[str],
    *,
    queries: int,
    length: int,
    most_tasks: int,
    unmergeable: Collection[str] = (),
) -> int | None:
    """The number of tasks from which on sharing is faster than a merged copy for every task.

    Args:
        tables: Costs of the base and of tasks' terms.
        kinds: Kinds that are assigned to the tasks in rotation.
        queries: Number of waiting queries per task.
        length: Length of every query in tokens.
        most_tasks: Largest number of tasks that is checked.
        unmergeable: Kinds whose terms cannot be merged into weights.

    Returns:
        The number, or None if copies are still faster at `most_tasks`.
    """
    found = None
    for tasks in range(most_tasks, 0, -1):
        waiting = [(str(task), kinds[task % len(kinds)], length) for task in range(tasks) for _ in range(queries)]
        if saved_by_sharing(Pool.of(tables, waiting), tables, unmergeable) <= 0:
            break
        found = tasks
    return found


@dataclass(frozen=True, slots=True)
class TaskLoad:
    """Load of one task.

    Attributes:
        task: Name of the task.
        kind: Name of the task's kind.
        per_s: Queries per second.
        length: Mean length in tokens.
    """

    task: str
    kind: str
    per_s: float
    length: float  # mean, in tokens


class Arrivals:
    """Recent arrivals of every task; an arrival `half_life_s` seconds ago counts half."""

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._found: dict[str, tuple[str, float, float, float]] = {}  # kind, time of the last arrival, queries, tokens

    def note(self, task: str, kind: str, length: int, now: float) -> None:
        """Count an arrived query.

        Args:
            task: Name of the task.
            kind: Name of the task's kind.
            length: Length of the query in tokens.
            now: Time of arrival in seconds.
        """
        _, queries, tokens = self._at(task, now)
        self._found[task] = kind, now, queries + 1, tokens + length

    def loads(self, now: float) -> list[TaskLoad]:
        """The load of every task, descending; tasks with almost no arrivals are dropped.

        Args:
            now: Present time in seconds.
        """
        loads = []
        for task in list(self._found):
            kind, queries, tokens = self._at(task, now)
            if queries < 1e-3:
                del self._found[task]
                continue
            # Arrivals at a constant rate add up to rate × half life / ln 2.
            loads.append(TaskLoad(task, kind, queries * np.log(2) / self._half_life_s, tokens / queries))
        return sorted(loads, key=lambda load: -load.per_s)

    def _at(self, task: str, now: float) -> tuple[str, float, float]:
        kind, then, queries, tokens = self._found.get(task, ("", now, 0.0, 0.0))
        left = 0.5 ** ((now - then) / self._half_life_s)
        return kind, queries * left, tokens * left


@dataclass(frozen=True, slots=True)
class MergeRule:
    """When a task gets a merged copy, and when it loses it.

    Attributes:
        max_copies: Largest number of merged copies.
        enter: Share of the engine's time that a copy must save to be created.
        leave: Share below which a copy is dropped; less than `enter`, which avoids oscillation. A task without a copy
            replaces one with a copy only if it saves more by the same ratio.
        unmergeable: Kinds whose terms cannot be merged into weights: their tasks get no copies.
    """

    max_copies: int
    enter: float = 0.05
    leave: float = 0.02
    unmergeable: frozenset[str] = frozenset()


def choose_copies(
    loads: Sequence[TaskLoad], current: Collection[str], tables: Tables, rule: MergeRule
) -> frozenset[str]:
    """The tasks that should run from merged copies.

    Tasks are taken out of the shared passes one after another, each time the one that saves the most. The saving of a
    task is Inequality 1 for the task and the others: α(N) + β(n) against α(N - n) + α(n), where a pass has N queries,
    as many as arrive during the pass before it, and n of them are the task's.

    Args:
        loads: Load of every task.
        current: Tasks that have a merged copy now.
        tables: Costs of the base and of tasks' terms.
        rule: When a task gets a copy.
    """
    if not loads or not rule.max_copies:
        return frozenset()
    lengths = np.array([min(round(load.length), tables.max_length) for load in loads])
    rates = np.array([load.per_s for load in loads])
    curves = [_curve(tables.shared[max(1, length)]) for length in lengths]
    terms = [
        np.append(0.0, tables.terms[tables.kind(load.kind), max(1, length), 1 : len(curve)])
        for load, length, curve in zip(loads, lengths, curves, strict=True)
    ]
    together = _curve(tables.shared[max(1, round(float(np.average(lengths, weights=rates))))])

    def task_seconds(n: FloatTable) -> FloatTable:
        return np.array([_seconds(each, float(queries)) for each, queries in zip(terms, n, strict=True)])

    total = float(rates.sum())
    for in_pass in range(1, len(together)):
        n = rates / total * in_pass
        took = _seconds(together, in_pass) + float(task_seconds(n).sum())
        if took <= in_pass / total:
            break
    period = max(took, in_pass / total)
    own = task_seconds(n)
    alone = np.array([_seconds(curve, float(queries)) for curve, queries in zip(curves, n, strict=True)])
    left = float(in_pass)
    chosen: set[int] = set()
    mergeable = {position for position, load in enumerate(loads) if load.kind not in rule.unmergeable}
    while len(chosen) < min(rule.max_copies, len(mergeable)):
        rest = sorted(mergeable - chosen)
        saved = {
            position: (
                _seconds(together, left)
                + own[position]
                - _seconds(together, max(0.0, left - n[position]))
                - alone[position]
            )
            / period
            for position in rest
        }
        ratio = {
            position: saved[position] / (rule.leave if loads[position].task in current else rule.enter)
            for position in rest
        }
        best = max(rest, key=ratio.__getitem__)
        if ratio[best] < 1:
            break
        chosen.add(best)
        left -= n[best]
    return frozenset(loads[position].task for position in chosen)


def _curve(row: FloatTable) -> FloatTable:
    """Seconds by number of queries from 0 on, up to the largest batch; `row` is one row of a table."""
    return np.append(0.0, row[1:][np.isfinite(row[1:])])


def _seconds(curve: FloatTable, queries: float) -> float:
    """Mean seconds of a number of queries; more than the largest batch run as several of the largest."""
    largest = len(curve) - 1
    if queries > largest:
        return float(curve[-1]) * queries / largest
    return float(np.interp(queries, np.arange(largest + 1), curve))
