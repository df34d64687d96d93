"""Metrics of answers, by task of encoders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidal.encoder_tasks.head import FoundOutputs
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.metrics import Counter, Deferred, Metrics
from tidal.requests import Array


class _Counters(NamedTuple):
    requests: Counter
    rows: Counter
    tokens: Counter
    found: Counter


_Answer = tuple[str, int, int, int]  # its task, and its numbers of rows, tokens, and of what was found in it


class AnswerMetrics:
    """The families `tidal_<system>_answered_*` and `tidal_<system>_found_total`; any thread may record.

    Args:
        metrics: Metrics of the model.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._counters: dict[str, _Counters] = {}
        self._answers: Deferred[_Answer] = metrics.deferred("answers", self._record)

    def answered(self, task: str, tokens: Sequence[TokenRow], outputs: Mapping[str, Array]) -> None:
        """Record a request that was answered.

        Args:
            task: Task of encoders that the answer is of.
            tokens: Tokens of each row.
            outputs: Outputs of the task's head for the request.
        """
        found = outputs.found if isinstance(outputs, FoundOutputs) else 0
        self._answers.add((task, len(tokens), sum(len(row.ids) for row in tokens), found))

    def _record(self, answer: _Answer) -> None:
        task, rows, tokens, found = answer
        counters = self._counters.get(task) or self._make(task)
        counters.requests.inc()
        counters.rows.inc(rows)
        counters.tokens.inc(tokens)
        if found:
            counters.found.inc(found)

    def _make(self, task: str) -> _Counters:
        metrics = self._metrics
        self._counters[task] = _Counters(
            metrics.counter("answered_requests_total", "Requests answered, by task of encoders", task=task),
            metrics.counter("answered_rows_total", "Rows of answered requests, by task of encoders", task=task),
            metrics.counter("answered_tokens_total", "Tokens of answered requests, by task of encoders", task=task),
            metrics.counter(
                "found_total", "Entities, answers and masked words in answers, by task of encoders", task=task
            ),
        )
        return self._counters[task]
