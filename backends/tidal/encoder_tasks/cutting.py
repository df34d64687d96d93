"""Texts that are longer than a model reads, cut into windows; each window is a query of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np

from tidal.encoder_tasks.entries import task_entry
from tidal.encoder_tasks.head import RowResult, TaskHead, WindowedHead
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.encoder_tasks.windows import Windows, cut_windows, merge_tokens
from tidal.errors import InvalidArgument

# What happens to a text that exceeds the model's limit: refused, truncated, or read in windows.
Truncation = Literal[True, False, "stride"]

# Limits of a text that is cut: its tokens as a multiple of the model's longest input, and its windows. Together they
# bound what one request can cost.
_LONGEST = 16
_MAX_WINDOWS = 64
# As transformers' pipeline for questions.
_OVERLAP = 128


@dataclass(frozen=True, slots=True)
class Cutter:
    """Cuts texts into windows.

    Args:
        part: Index of the text of a pair that is cut; other tokens are in every window.
        max_length: Maximum number of tokens of a window.
        overlap: Number of tokens that consecutive windows have in common.
        first_only: Whether only the first window is read.
    """

    part: int
    max_length: int
    overlap: int
    first_only: bool

    def cut(self, rows: Sequence[TokenRow]) -> list[Windows | None]:
        """Return the windows over the rows of a request; None for a row that needs none.

        Raises:
            InvalidArgument: A row has no room for its text beside its other tokens, or needs too many windows.
        """
        return [None if len(row.ids) <= self.max_length else self._cut(number, row) for number, row in enumerate(rows)]

    def _cut(self, number: int, row: TokenRow) -> Windows:
        assert row.text is not None
        content = row.text.parts == self.part
        others = len(content) - int(content.sum())
        room = self.max_length - others
        if room < 1:
            raise InvalidArgument(
                f"text_input row {number} has {others} tokens beside the text of text_pair; this model reads at most "
                f"{self.max_length}, those of text_pair included: shorten text_input"
            )
        windows = cut_windows(content, self.max_length, self.overlap if self.overlap < room else room // 2)
        if self.first_only:
            return Windows(windows.tokens[:1], (np.ones(len(windows.tokens[0]), np.bool_),))
        if len(windows.tokens) > _MAX_WINDOWS:
            raise InvalidArgument(
                f"row {number} needs {len(windows.tokens)} windows of {self.max_length} tokens; accepted are up to "
                f"{_MAX_WINDOWS}: shorten its texts"
            )
        return windows


def open_cutter(task: str, max_length: int, truncate: Truncation, stride: int | None) -> Cutter | None:
    """Return what cuts the texts of a model; None if its tokenizer refuses or truncates them.

    Args:
        task: Name of the model's task.
        max_length: Maximum number of tokens of a window.
        truncate: Parameter `truncate`.
        stride: Parameter `stride`; None for the default of the task.

    Raises:
        InvalidArgument: The task has no windows, or `stride` does not fit `truncate` and the model's longest input.
    """
    check_stride(max_length, truncate, stride)
    if truncate == "stride" and task_entry(task).windows is None:
        raise InvalidArgument(
            f"'truncate' is 'stride', and the task {task} has no windows; accepted are true and false"
        )
    return task_cutter(task, max_length, truncate, stride)


def check_stride(max_length: int, truncate: Truncation, stride: int | None) -> None:
    """Check the parameter `stride`.

    Args:
        max_length: Maximum number of tokens of a window.
        truncate: Parameter `truncate`.
        stride: Parameter `stride`; None for the default of the task.

    Raises:
        InvalidArgument: `stride` does not fit `truncate` or the model's longest input.
    """
    if stride is None:
        return
    if truncate != "stride":
        raise InvalidArgument(f"'stride' is {stride}; it requires truncate: stride, which is not set")
    if stride > max_length // 2:
        raise InvalidArgument(
            f"'stride' is {stride}; accepted are 0 to {max_length // 2} tokens, half of the model's longest input"
        )


def task_cutter(task: str, max_length: int, truncate: Truncation, stride: int | None) -> Cutter | None:
    """Return what cuts the texts of a task; None if its tokenizer refuses or truncates them.

    Args:
        task: Name of the task.
        max_length: Maximum number of tokens of a window.
        truncate: Parameter `truncate`.
        stride: Parameter `stride`, which `check_stride` has checked; None for the default of the task.
    """
    entry = task_entry(task)
    if entry.windows is None:
        return None
    if truncate != "stride":
        # A question is never truncated in favor of its context.
        return Cutter(entry.windows, max_length, 0, True) if truncate and entry.windows else None
    if stride is None:
        stride = min(max_length // 2, _OVERLAP) if entry.offsets else 0
    return Cutter(entry.windows, max_length, stride, False)


def longest_text(cutter: Cutter | None) -> int | None:
    """Return the maximum number of tokens of a text that is cut; None without a cutter."""
    return None if cutter is None else _LONGEST * cutter.max_length


def pieces(rows: Sequence[TokenRow], windows: Sequence[Windows | None]) -> list[TokenRow]:
    """Return the rows to run: for each row its windows, or the row itself."""
    cut: list[TokenRow] = []
    for row, own in zip(rows, windows, strict=True):
        if own is None:
            cut.append(row)
        else:
            cut += [TokenRow(row.ids[each], row.mask[each], row.type_ids[each]) for each in own.tokens]
    return cut


def merge_results(
    head: TaskHead,
    rows: Sequence[TokenRow],
    windows: Sequence[Windows | None],
    parts: Sequence[RowResult],
    per_token: Sequence[str] = (),
) -> list[RowResult]:
    """Return the result of each row of a request from those of the rows and windows that ran; see `pieces`.

    Args:
        head: Head of the task, which has windows.
        rows: Tokens of each row.
        windows: Windows over each row; None for a row that ran whole.
        parts: Results of the rows and windows, in the order of `pieces`.
        per_token: Names of further outputs of the engines with values per token, which are merged too.
    """
    rest, merged = iter(parts), []
    for row, own in zip(rows, windows, strict=True):
        if own is None:
            merged.append(next(rest))
            continue
        mine = [next(rest) for _ in own.tokens]
        outputs = {
            name: merge_tokens(own, [part.values(name, per_token=True) for part in mine])[None] for name in per_token
        }
        longest = max(part.max_length for part in mine)
        merged.append(RowResult(cast(WindowedHead, head).merge(own, mine), 0, outputs, len(row.ids), longest))
    return merged
