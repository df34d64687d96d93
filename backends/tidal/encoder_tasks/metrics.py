"""Metrics of answers, by task of encoders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidal.encoder_tasks.head import FoundOutputs, RowTokens
from tidal.metrics import Counter, Metrics
from tidal.requests import Array


class _Counters(NamedTuple):
    requests: Counter
    rows: Counter
    tokens: Counter
    found: Counter


class AnswerMetrics:
    """The families `tidal_<system>_answered_*` and `tidal_<system>_found_total`; any thread may record.

    Args:
        metrics: Metrics of the model.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._counters: dict[str, _Counters] = {}

    def answered(self, task: str, tokens: Sequence[RowTokens], outputs: Mapping[str, Array]) -> None:
        """Record a request that was answered.

        Args:
            task: Task of encoders that the answer is of.
            tokens: Tokens of each row.
            outputs: Outputs of the task's head for the request.
        """
        counters = self._counters.get(task) or self._make(task)
        counters.requests.inc()
        counters.rows.inc(len(tokens))
        counters.tokens.inc(sum(len(row.ids) for row in tokens))
        if isinstance(outputs, FoundOutputs):
            counters.found.inc(outputs.found)

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
