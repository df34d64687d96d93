"""Texts that are longer than a model reads, cut into windows; each window is a query of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tidal.arlo.manifest import ArloManifest
from tidal.arlo.model import TokenRow
from tidal.encoder_tasks import task_entry
from tidal.encoder_tasks.windows import Windows, cut_windows
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


def open_cutter(manifest: ArloManifest, truncate: Truncation, stride: int | None) -> Cutter | None:
    """Return what cuts the texts of a model; None if its tokenizer refuses or truncates them.

    Args:
        manifest: Manifest of the version.
        truncate: Parameter `truncate`.
        stride: Parameter `stride`; None for the default of the task.

    Raises:
        InvalidArgument: The task has no windows, or `stride` does not fit `truncate` and the model's longest input.
    """
    part = task_entry(manifest.task).windows
    if truncate != "stride":
        if stride is not None:
            raise InvalidArgument(f"parameter 'stride' is {stride}; it requires truncate: stride, which is not set")
        # A question is never truncated in favor of its context.
        return Cutter(part, manifest.max_length, 0, True) if truncate and part else None
    if part is None:
        raise InvalidArgument(
            f"parameter 'truncate' is 'stride', and the task {manifest.task} has no windows; accepted are true and "
            "false"
        )
    if stride is None:
        stride = min(manifest.max_length // 2, _OVERLAP) if task_entry(manifest.task).offsets else 0
    if stride > manifest.max_length // 2:
        raise InvalidArgument(
            f"parameter 'stride' is {stride}; accepted are 0 to {manifest.max_length // 2} tokens, half of the model's "
            "longest input"
        )
    return Cutter(part, manifest.max_length, stride, False)


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
