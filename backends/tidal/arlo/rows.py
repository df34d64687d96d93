"""The rows of requests as queries of a placement policy: their texts are tokenised, and cut where they are too long."""

from __future__ import annotations

from collections.abc import Sequence

from tidal.arlo.jobs import AnswerBuilder, ArloRequest, ArloRow
from tidal.arlo.metrics import ArloMetrics
from tidal.encoder_tasks.cutting import Cutter, pieces
from tidal.encoder_tasks.reader import read_requests
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.errors import TidalError
from tidal.requests import PendingRequest
from tidal.text import TextTokenizer


class RowBuilder:
    """Builds the rows of requests; any thread may call it.

    Args:
        answers: Checks what the task needs of a request.
        tokenizer: Tokenizer of the version being served.
        cutter: Cuts texts that are too long; None if the tokenizer refuses or truncates them.
        metrics: Metrics of the model, which count the rows.
    """

    def __init__(
        self, answers: AnswerBuilder, tokenizer: TextTokenizer, cutter: Cutter | None, metrics: ArloMetrics
    ) -> None:
        self._answers = answers
        self._tokenizer = tokenizer
        self._cutter = cutter
        self._metrics = metrics

    def tokenise(self, requests: Sequence[PendingRequest]) -> list[ArloRow]:
        """Return the rows of valid requests; fail the others."""
        requests, inputs = self._answers.inputs(requests)
        read = read_requests(inputs, self._tokenizer)
        valid: list[tuple[PendingRequest, Sequence[TokenRow]]] = []
        for request, tokens in zip(requests, read, strict=True):
            if isinstance(tokens, TidalError):  # one request must not fail the others
                request.fail(tokens)
            else:
                valid.append((request, tokens))
        return self.build(valid)

    def build(self, requests: Sequence[tuple[PendingRequest, Sequence[TokenRow]]]) -> list[ArloRow]:
        """Return the rows of requests; fail those that cannot be cut.

        Args:
            requests: Requests, each with the tokens of its rows.
        """
        rows: list[ArloRow] = []
        for request, tokens in requests:
            if request.record is not None:
                request.record.tokens = sum(len(row.ids) for row in tokens)
            run, windows = tokens, None
            if self._cutter is not None:
                try:
                    windows = self._cutter.cut(tokens)
                except TidalError as error:
                    request.fail(error)
                    continue
                run = pieces(tokens, windows)
            parent = ArloRequest(request, tokens, windows)
            rows += [
                ArloRow(len(row.ids), request.arrival, request.deadline, tokens=row, parent=parent, index=index)
                for index, row in enumerate(run)
            ]
        self._metrics.arrived.add([row.length for row in rows])
        return rows
