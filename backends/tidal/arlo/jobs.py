"""Rows of requests in the `arlo` service, and the responses built from their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from tidal.arlo.manifest import ArloManifest
from tidal.arlo.policies import ArloQuery
from tidal.encoder_tasks.cutting import merge_results
from tidal.encoder_tasks.entries import task_entry
from tidal.encoder_tasks.head import RowResult, stacked
from tidal.encoder_tasks.metrics import AnswerMetrics
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.encoder_tasks.windows import Windows
from tidal.errors import InvalidArgument, TidalError
from tidal.requests import Array, PendingRequest
from tidal.serving.rows import RequestRows
from tidal.text import TextTokenizer

# Numbers whose arrays are cached: making one takes 1 µs.
_MAX_SINGLES = 1024


class ArloRequest(RequestRows[RowResult]):
    """A request and the results of its rows so far.

    Args:
        request: Request whose rows run.
        tokens: Tokens of each row.
        windows: Windows over each row, None for a row that runs whole; None if all do.

    Attributes:
        tokens: Tokens of each row.
        windows: Windows over each row.
    """

    def __init__(
        self, request: PendingRequest, tokens: Sequence[TokenRow], windows: Sequence[Windows | None] | None = None
    ) -> None:
        each = [1] * len(tokens) if windows is None else [1 if own is None else len(own.tokens) for own in windows]
        super().__init__(request, sum(each))
        self.tokens = tokens
        self.windows = windows


@dataclass(eq=False, slots=True)
class ArloRow(ArloQuery):
    """A row of a request as a query of the policy, with its tokens and its request."""

    tokens: TokenRow = field(kw_only=True)
    parent: ArloRequest = field(kw_only=True)
    index: int = field(kw_only=True)
    crashes: int = field(default=0, kw_only=True)  # times that the process to run it crashed or was down


def refuse_all(rows: Sequence[ArloRow], error: TidalError) -> None:
    """Fail the requests of rows that are not accepted."""
    for parent in {id(row.parent): row.parent for row in rows}.values():
        parent.request.fail(error)


class AnswerBuilder:
    """Builds responses from engine outputs.

    Args:
        manifest: Manifest of the served version.
        tokenizer: Its tokenizer.
        declared: Names of the outputs in config.pbtxt.
        metrics: Metrics of the answers.

    Raises:
        InvalidArgument: config.pbtxt declares an output that the model does not have.
    """

    def __init__(
        self, manifest: ArloManifest, tokenizer: TextTokenizer, declared: frozenset[str], metrics: AnswerMetrics
    ) -> None:
        entry = task_entry(manifest.task)
        self._task, self._metrics = manifest.task, metrics
        self._head = entry.open_head(manifest.settings, manifest.labels, tokenizer)
        self._extra = {output.name: output.per_token for output in manifest.extra_outputs}
        known = [*(output.name for output in entry.outputs), "max_length", "input_tokens", *self._extra]
        for name in sorted(declared.difference(known)):
            raise InvalidArgument(
                f"config.pbtxt declares the output '{name}', which this model does not have: its task is "
                f"{manifest.task}, with the outputs {', '.join(known)}; remove '{name}' there, or add it to `outputs` "
                "of the spec if the task has it, and rebuild the model"
            )

    def inputs(
        self, requests: Sequence[PendingRequest]
    ) -> tuple[Sequence[PendingRequest], Sequence[Mapping[str, Array]]]:
        """Return requests with the inputs to tokenise; fail those that the task does not accept."""
        if not self._head.reads_requests:
            return requests, [request.inputs for request in requests]
        accepted, inputs = [], []
        for request in requests:
            try:
                inputs.append(self._head.read(request))
            except TidalError as error:
                request.fail(error)
            else:
                accepted.append(request)
        return accepted, inputs

    def results(self, outputs: Mapping[str, Array], lengths: Sequence[int], max_length: int) -> list[RowResult]:
        """Return the result of each query of a batch.

        Args:
            outputs: Engine outputs of the batch by name, [rows, ...].
            lengths: Length of each query in tokens.
            max_length: Maximum length of the runtime that ran the batch, in tokens.
        """
        batch = self._head.batch(outputs)
        return [RowResult(batch, index, outputs, length, max_length) for index, length in enumerate(lengths)]

    def reply(self, answered: ArloRequest) -> None:
        """Send the response of a request whose rows have all run."""
        request, rows = answered.request, answered.results
        if answered.windows is not None:
            extra = [name for name, per_token in self._extra.items() if per_token]
            rows = merge_results(self._head, answered.tokens, answered.windows, rows, extra)
        try:
            outputs = self._head.answers(request, rows, answered.tokens)
        except TidalError as error:
            request.fail(error)
            return
        self._metrics.answered(self._task, answered.tokens, outputs)
        if request.wants("max_length"):
            outputs["max_length"] = _column([row.max_length for row in rows])
        if request.wants("input_tokens"):
            outputs["input_tokens"] = _column([row.length for row in rows])
        for name, per_token in self._extra.items():
            if request.wants(name):
                outputs[name] = stacked([row.values(name, per_token=per_token) for row in rows])
        if request.record is not None:
            request.record.facts["max_length"] = [row.max_length for row in rows]
        request.reply(outputs)


def _column(values: list[int]) -> Array:
    """Return values as INT32 [rows, 1]; nobody writes to it."""
    return _single(values[0]) if len(values) == 1 else np.array(values, np.int32)[:, None]


@lru_cache(maxsize=_MAX_SINGLES)
def _single(value: int) -> Array:
    return np.array([[value]], np.int32)
