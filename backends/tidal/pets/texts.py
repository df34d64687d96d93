"""How the texts of each task are tokenised, and cut where they are longer than the encoder reads."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tidal.encoder_tasks.cutting import Cutter, Truncation, check_stride, longest_text, task_cutter
from tidal.encoder_tasks.entries import TASKS
from tidal.pets.heads import HEADS, head_task
from tidal.text import TextTokenizer


class TextReader(NamedTuple):
    """How the texts of a task are read.

    Attributes:
        tokenizer: Tokenizer of the model; it keeps offsets if the task's answers refer to characters.
        cutter: Cuts texts that are too long; None if the tokenizer refuses or truncates them.
    """

    tokenizer: TextTokenizer
    cutter: Cutter | None


class TaskTexts:
    """The tokenizer of a model, as each task of its encoder uses it.

    Args:
        file: Path of the model's `tokenizer.json`.
        max_length: Maximum length of a query in tokens, including special tokens.
        truncate: Treatment of longer texts: refused, truncated, or read in windows where the task has these.
        stride: Number of tokens that consecutive windows have in common; None for the default of the task.

    Raises:
        InvalidArgument: `stride` does not fit `truncate` or the maximum length.
    """

    def __init__(self, file: Path, max_length: int, *, truncate: Truncation = False, stride: int | None = None) -> None:
        check_stride(max_length, truncate, stride)
        self.tokenizer = TextTokenizer(file, max_length, truncate=truncate is True)
        cutters = {name: task_cutter(name, max_length, truncate, stride) for name in HEADS if name in TASKS}
        longest = max(filter(None, map(longest_text, cutters.values())), default=None)
        whole = self.tokenizer if longest is None else TextTokenizer(file, max_length, longest=longest)
        by_offsets = {
            tokenizer: {False: tokenizer, True: tokenizer.with_offsets()} for tokenizer in (self.tokenizer, whole)
        }
        self._readers = {
            name: TextReader(by_offsets[self.tokenizer if cutter is None else whole][head_task(name).offsets], cutter)
            for name, cutter in cutters.items()
        }

    def reader(self, task: str) -> TextReader:
        """How the texts of a task of encoders are read.

        Args:
            task: Name of the task of encoders.
        """
        return self._readers[task]
