"""Compares a stored task with the model that it was made from, on the engine that serves it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tidal.encoder_tasks.entries import task_entry
from tidal.errors import InvalidArgument, TidalError
from tidal.pets.tasks.folder import PetsTask
from tidal.pets.tasks.manifest import AccuracyComparison, AnswerComparison, Provenance
from tidal.pets.terms import FloatArray, TaskTerms
from tidal.serving.softmax import softmax
from tidal_builders.encoder_tasks.entries import BUILD_TASKS
from tidal_builders.pets.importing.imported import Imported, ImportOptions
from tidal_builders.pets.importing.offline_base import OfflineBase, open_offline
from tidal_builders.pets.importing.sources import SourceModel
from tidal_builders.rows import Columns, Rows, label_numbers, read_rows
from tidal_builders.texts import make_texts
from tidal_builders.tolerances import DEFAULT_TOLERANCE

# Number of texts for comparing logits, and for agreement without labelled queries.
_TEXTS, _MADE = 48, 128
_LONG, _PAIRS = 8, 8


class SourceComparison:
    """A source model and a published base that answer the same texts: labelled queries, or generated texts.

    Both are opened, and the source's answers are computed, when they are first used.

    Args:
        found: Result of the import, with its source.
        version: Folder of the base's published version.
        data: File of labelled queries; None: texts are generated.

    Raises:
        InvalidArgument: The data are not valid.
    """

    def __init__(self, found: Imported, version: Path, data: Path | None) -> None:
        self._source, self._version = found.source, version
        self._rows = None if data is None else read_rows(data, Columns())
        self.task, self._settings = found.terms.head.task, found.terms.head.settings
        if data is not None and self.task != "classification":
            raise InvalidArgument(f"--data measures the accuracy of classifications; this task is for {self.task}")
        self.truth = None if self._rows is None else label_numbers(self._rows, found.terms.head.labels)

    @cached_property
    def served(self) -> OfflineBase:
        """The base; raises as `open_offline`."""
        return open_offline(self._version)

    @cached_property
    def source(self) -> SourceModel:
        """The source, for texts of up to the base's longest.

        Raises:
            InvalidArgument: The source is not on this machine.
        """
        if self._source is None:
            raise InvalidArgument(
                "the task cannot be compared with its source: the base's own files are not on this machine; name their "
                "folder by --base-model FOLDER"
            )
        source = self._source()
        return replace(source, longest=min(source.longest, self.served.manifest.max_length))

    @property
    def mask(self) -> str:
        """How a masked word is written in texts; "" if the task has none."""
        return str(self._settings.get("mask", ""))

    @cached_property
    def texts(self) -> list[tuple[str, ...]]:
        """Texts that both models answer."""
        return _texts(self.source, self._rows, self.task, self.mask)

    @cached_property
    def wanted(self) -> list[FloatArray]:
        """What the source's answers are made of, for each text."""
        return self.source.answers(self.texts)

    def answers(self, terms: TaskTerms, positions: Sequence[int]) -> list[FloatArray]:
        """What a task's answers are made of, for some of the texts.

        Args:
            terms: Terms of the task.
            positions: Indices of the texts.
        """
        return self.served.answers(terms, [self.texts[position] for position in positions], self.source.longest)


def verify_import(
    task: PetsTask, found: Imported, comparison: SourceComparison, options: ImportOptions, *, half: bool
) -> Provenance:
    """Compare a stored task with the model that it was made from.

    Args:
        task: Task as it was read back from its folder.
        found: Result of the import.
        comparison: The import's source and the base's published version.
        options: `min_score` is the bound; with `force` nothing is refused.
        half: Whether the values were stored as float16.

    Returns:
        Origin of the task, with the figures of the comparison.

    Raises:
        InvalidArgument: The task does not answer as its source does, or cannot be compared.
    """
    made = found.provenance
    try:
        made = _compared_provenance(task, found, comparison, half=half)
        if missed := _missed(made, options.min_score):
            raise InvalidArgument(f"{missed}{_advice(found, options)}")
    except TidalError as error:
        if not options.force:
            raise InvalidArgument(f"{error}; nothing was added (--force adds it anyway)") from None
        return made.model_copy(update={"notes": (*made.notes, f"added by --force: {error}")})
    return made


def _compared_provenance(task: PetsTask, found: Imported, comparison: SourceComparison, *, half: bool) -> Provenance:
    precision = comparison.served.manifest.precision
    # For all kinds: values differ from the source's only by storage and computation.
    tolerance = DEFAULT_TOLERANCE[precision] + half * DEFAULT_TOLERANCE["fp16"]
    source, texts, wanted, truth = comparison.source, comparison.texts, comparison.wanted, comparison.truth
    answers = comparison.answers(task.terms, range(len(texts)))
    compare = partial(_compared, comparison.task, tolerance=tolerance)
    exact = compare(source.title, wanted[:_TEXTS], answers[:_TEXTS]) if found.lossless else None
    if found.carried is not None:
        carried = replace(found.carried(task.terms), longest=source.longest)
        exact = compare(carried.title, carried.answers(texts[:_TEXTS]), answers[:_TEXTS])
    if exact is not None and not exact.exact:
        raise InvalidArgument(f"the stored task answers differently from {exact.sentence()}")
    accuracy = None
    if truth is not None:
        accuracy = AccuracyComparison(
            rows=len(truth), accuracy=accuracy_of(answers, truth), source_accuracy=accuracy_of(wanted, truth)
        )
    compared = compare(source.title, wanted, answers)
    return found.provenance.model_copy(update={"answers": compared, "accuracy": accuracy})


def _missed(made: Provenance, min_score: float) -> str:
    """Describe what exceeds the bound; "" if nothing does."""
    accuracy, compared = made.accuracy, made.answers
    assert compared is not None
    if accuracy is not None:
        if accuracy.source_accuracy - accuracy.accuracy <= 1 - min_score:
            return ""
        return (
            f"accuracy on {accuracy.rows} queries is {accuracy.accuracy:.2%}, that of {compared.source} "
            f"{accuracy.source_accuracy:.2%}; accepted is a loss of up to {1 - min_score:.2%} (1 - --min-agreement)"
        )
    if compared.agreement >= min_score:
        return ""
    return (
        f"agreement with {compared.source} on {compared.texts} generated texts is "
        f"{compared.agreement:.1%}; accepted is "
        f"{min_score:.1%} and more (--min-agreement)"
    )


def _advice(found: Imported, options: ImportOptions) -> str:
    given = options.sparsity is not None and not found.lossless
    return ": a lower --sparsity keeps more of the checkpoint, without --sparsity it is chosen" if given else ""


def _texts(source: SourceModel, rows: Rows | None, task: str, mask: str) -> list[tuple[str, ...]]:
    """The labelled queries, or generated texts of many lengths, of which some or all are pairs as the task accepts.

    With `mask` one of the first words of each text is masked.
    """
    if rows is not None:
        return list(rows.texts)
    lines = make_texts(2 * _MADE, seed=3)
    # About one token per three letters.
    long = [" ".join(lines[number:])[: (number + 1) * 3 * source.longest // _LONG] for number in range(_LONG)]
    accepts = task_entry(task).pairs
    if accepts == "required":
        documents = [*long, *lines[_MADE : 2 * _MADE - _LONG]]
        return list(zip(lines[:_MADE], documents, strict=True))
    if mask:
        long, lines = ([_masked(text, number, mask) for number, text in enumerate(each)] for each in (long, lines))
    pairs = list(zip(lines[:_PAIRS], lines[_PAIRS : 2 * _PAIRS], strict=True)) if accepts == "accepted" else []
    return [*pairs, *((line,) for line in long), *((line,) for line in lines[: _MADE - _LONG - len(pairs)])]


def _masked(text: str, number: int, mask: str) -> str:
    """The text with a mask in the place of one of its first words; of every third text, of two of them."""
    words = text.split(" ")
    places = {number % min(len(words), _LONG), *([0] if number % 3 == 0 else [])}
    return " ".join(mask if place in places else word for place, word in enumerate(words))


def _compared(
    task: str, title: str, wanted: Sequence[FloatArray], answers: Sequence[FloatArray], *, tolerance: float
) -> AnswerComparison:
    """Compare what a task's answers are made of with what is expected."""
    largest = max(1.0, *(float(np.abs(each).max()) for each in wanted))
    error = max(float(np.abs(got - each).max()) for got, each in zip(answers, wanted, strict=True)) / largest
    measure = BUILD_TASKS[task].load_measure()
    share = measure.agreement(answers, wanted) if np.isfinite(error) else 0.0
    return AnswerComparison(
        source=title,
        texts=len(wanted),
        measure=measure.agreement_name,
        labels=share,
        clear_labels=_clear(wanted, answers, 2 * tolerance * largest) if task == "classification" else 1.0,
        max_error=error if np.isfinite(error) else float(np.finfo(np.float32).max),
        tolerance=tolerance,
        agreement=agreement(task, wanted, answers),
    )


def _clear(wanted: Sequence[FloatArray], answers: Sequence[FloatArray], margin: float) -> float:
    """Share of equal labels, without the texts whose two best logits differ by less than rounding may change."""
    expected, got = np.stack(wanted), np.stack(answers)
    best = np.sort(expected, axis=1)
    clear = best[:, -1] - best[:, -2] > margin
    return float((expected.argmax(1) == got.argmax(1))[clear].mean()) if clear.any() else 1.0


def agreement(task: str, wanted: Sequence[FloatArray], answers: Sequence[FloatArray]) -> float:
    """Agreement of two models, 0 to 1, by the measure of their task.

    Of classifications it is the lesser of two means over texts. One is the share of equal labels. The other is 1 minus
    the total variation distance of the class probabilities, which shows differences that labels do not, where nearly
    all generated texts have the same label.

    Args:
        task: Task of encoders that they answer.
        wanted: Outputs of the source model by text.
        answers: Outputs of the task by text.
    """
    if not all(np.isfinite(each).all() for each in answers):
        return 0.0
    share = BUILD_TASKS[task].load_measure().agreement(answers, wanted)
    if task != "classification":
        return min(1.0, share)
    expected, got = (softmax(np.stack(each), dtype=np.float32) for each in (wanted, answers))
    return min(share, 1.0 - float(np.abs(expected - got).sum(axis=1).mean() / 2))


def accuracy_of(logits: Sequence[FloatArray], truth: npt.NDArray[np.int64]) -> float:
    """Share of the rows with the correct label.

    Args:
        logits: Logits of each row [classes].
        truth: Number of the correct class of each row.
    """
    return float((np.stack(logits).argmax(1) == truth).mean())
