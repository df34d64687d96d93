"""The contract of task heads: they turn the outputs of engines into the outputs that clients request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict

from tidal.encoder_tasks.token_rows import TokenRow
from tidal.encoder_tasks.windows import Windows
from tidal.errors import InvalidArgument
from tidal.requests import Array, PendingRequest
from tidal.serving.classes import BatchOutputs, gather


class Settings(BaseModel):
    """What a manifest stores about a task: immutable; unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoSettings(Settings):
    """Settings of a task that has none."""


class RowResult(NamedTuple):
    """Result of one query: its row in the outputs of a batch.

    Attributes:
        batch: Values derived from the batch's outputs; see `TaskHead.batch`.
        row: Index of the query in the batch.
        outputs: Engine outputs of the batch by name, [rows, ...].
        length: Length of the query in tokens.
        max_length: Maximum length of the runtime that ran it, in tokens.
    """

    batch: BatchOutputs
    row: int
    outputs: Mapping[str, Array]
    length: int
    max_length: int

    def values(self, output: str, *, per_token: bool) -> Array:
        """Return the query's row of an engine output, without padding: [length, ...] if it has values per token."""
        values = self.outputs[output][self.row]
        return np.asarray(values[: self.length] if per_token else values)


class FoundOutputs(dict[str, Array]):
    """Outputs of a head that finds things in texts.

    Args:
        outputs: Outputs by name, [rows, ...].
        found: Number of things in all rows.
    """

    def __init__(self, outputs: Mapping[str, Array], found: int) -> None:
        super().__init__(outputs)
        self.found = found


class TaskHead(Protocol):
    """Answers the requests of a model; any thread may call it.

    Attributes:
        reads_requests: Whether `read` does anything, so that it has to be called.
    """

    @property
    def reads_requests(self) -> bool:
        """Whether `read` checks or changes anything."""

    def read(self, request: PendingRequest) -> Mapping[str, Array]:
        """Check a request's options and inputs before it is tokenised.

        Args:
            request: Request with unchecked inputs.

        Returns:
            Inputs to tokenise, by name.

        Raises:
            InvalidArgument: An option or an input is not accepted.
        """

    def batch(self, outputs: Mapping[str, Array]) -> BatchOutputs:
        """Return what follows from the outputs of a batch, each computed at first use.

        Args:
            outputs: Engine outputs by name, [rows, ...].
        """

    def answers(
        self, request: PendingRequest, rows: Sequence[RowResult], tokens: Sequence[TokenRow]
    ) -> dict[str, Array]:
        """Return the requested outputs of the task, [rows, ...] by name; `FoundOutputs` if it finds things in texts.

        Args:
            request: Request whose rows have all run.
            rows: Results by row.
            tokens: Tokens by row.

        Raises:
            TidalError: The request cannot be answered.
        """


class WindowedHead(TaskHead, Protocol):
    """A head whose task has windows."""

    def merge(self, windows: Windows, parts: Sequence[RowResult]) -> BatchOutputs:
        """Merge the results of the windows over a query.

        Args:
            windows: Windows over the query.
            parts: Result of each window.

        Returns:
            What `batch` would return for the whole query as the only one of a batch.
        """


class RowHead:
    """A head whose outputs belong to rows of a batch, whatever their request: answers are slices of the batch's.

    Args:
        outputs: Names of the outputs.
    """

    reads_requests = False

    def __init__(self, outputs: Sequence[str]) -> None:
        self._outputs = tuple(outputs)

    def read(self, request: PendingRequest) -> Mapping[str, Array]:
        """Accept any options."""
        return request.inputs

    def answers(
        self, request: PendingRequest, rows: Sequence[RowResult], tokens: Sequence[TokenRow]
    ) -> dict[str, Array]:
        """Slice the batches' outputs; see `TaskHead.answers`."""
        if len(rows) == 1:
            ((batch, row, *_),) = rows
            return {name: batch[name][row : row + 1] for name in self._outputs if request.wants(name)}
        located = [(row.batch, row.row) for row in rows]
        return {name: gather(located, name) for name in self._outputs if request.wants(name)}


def refuse_pairs(request: PendingRequest, reason: str) -> None:
    """Refuse a request with `text_pair`.

    Args:
        request: Request to check.
        reason: Clause that says what the task reads.

    Raises:
        InvalidArgument: The request has pairs.
    """
    if "text_pair" in request.inputs:
        raise InvalidArgument(f"text_pair was sent, and {reason}; send text_input alone")


def stacked(parts: Sequence[Array], fill: Any = 0) -> Array:
    """Return arrays [length, ...] as one array [rows, longest, ...], filled up with `fill`."""
    if len(parts) == 1:
        return parts[0][None]
    longest = max(len(part) for part in parts)
    out = np.full((len(parts), longest, *parts[0].shape[1:]), fill, parts[0].dtype)
    for i, part in enumerate(parts):
        out[i, : len(part)] = part
    return out
