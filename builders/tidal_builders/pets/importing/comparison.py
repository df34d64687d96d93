"""Compares a stored task with the model that it was made from, on the engine that serves it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tidal import device
from tidal.errors import InvalidArgument, TidalError
from tidal.pets.engine.contract import PetsEngine
from tidal.pets.manifest import ENGINE_FOLDER, PetsManifest, load_pets_manifest
from tidal.pets.opening import open_pets_engine
from tidal.pets.tasks.folder import PetsTask
from tidal.pets.tasks.manifest import AccuracyComparison, AnswerComparison, Provenance
from tidal.pets.terms import FloatArray, TaskTerms
from tidal.serving.softmax import softmax
from tidal.text.tokenizer import open_tokenizer
from tidal_builders.pets.importing.imported import Imported, ImportOptions
from tidal_builders.pets.importing.sources import SourceModel
from tidal_builders.rows import Columns, Rows, label_numbers, read_rows
from tidal_builders.texts import make_texts
from tidal_builders.tolerances import DEFAULT_TOLERANCE

Texts = Sequence[tuple[str, ...]]

# Number of texts for comparing logits and for agreement without labelled queries, and rows per batch.
_TEXTS, _MADE, _BATCH = 48, 128, 16
_LONG, _PAIRS = 8, 8


@dataclass(frozen=True, slots=True)
class OfflineBase:
    """A published base with its engine open, which answers as the server does, one batch at a time.

    Attributes:
        version: Folder of the published version.
        manifest: Manifest of the version.
        engine: Engine of the base.
    """

    version: Path
    manifest: PetsManifest
    engine: PetsEngine

    def logits(self, terms: TaskTerms, texts: Texts, longest: int) -> FloatArray:
        """Compute a task's logits.

        Args:
            terms: Terms of the task.
            texts: Texts of one string each, or of two.
            longest: Number of tokens at which texts are truncated.

        Returns:
            float32 [texts, classes].
        """
        manifest, engine = self.manifest, self.engine
        tokenizer = open_tokenizer(self.version / manifest.tokenizer.file)
        tokenizer.enable_truncation(min(longest, manifest.max_length))
        encoded = [tokenizer.encode(text[0], text[1] if len(text) > 1 else None) for text in texts]
        task = engine.add(terms)
        found = np.zeros((len(texts), len(terms.head.labels)), np.float32)
        # Batches have texts of similar length, because they are padded.
        order = sorted(range(len(texts)), key=lambda row: len(encoded[row].ids))
        for begin in range(0, len(order), _BATCH):
            rows = order[begin : begin + _BATCH]
            lengths = np.array([len(encoded[row].ids) for row in rows], np.int32)
            ids, types = (np.zeros((len(rows), int(lengths.max())), np.int32) for _ in range(2))
            for position, row in enumerate(rows):
                ids[position, : lengths[position]] = encoded[row].ids
                types[position, : lengths[position]] = encoded[row].type_ids
            kinds = types if manifest.tokenizer.type_ids else None
            pooled = engine.pooled([task] * len(rows), ids, lengths, kinds)
            found[rows] = pooled @ terms.head.weight.T + terms.head.bias
        engine.remove(task)
        return found


def open_offline(version: Path) -> OfflineBase:
    """Open a published version of a base.

    Args:
        version: Folder of the published version.

    Raises:
        InvalidArgument: The version is not valid, or was made for another device.
        TidalError: The engine cannot be opened on this machine.
    """
    manifest = load_pets_manifest(version)
    manifest.check(version, device.here(manifest.device.kind))
    engine = open_pets_engine(
        manifest.engine, version / ENGINE_FOLDER, threads=manifest.threads, device=manifest.device.kind,
        precision=manifest.precision, profile=manifest.profile,
    )  # fmt: skip
    return OfflineBase(version, manifest, engine)


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

    @cached_property
    def texts(self) -> list[tuple[str, ...]]:
        """Texts that both models answer."""
        return _texts(self.source, self._rows)

    @cached_property
    def wanted(self) -> FloatArray:
        """Logits of the source [texts, classes]."""
        return self.source.logits(self.texts)

    def answers(self, terms: TaskTerms, positions: Sequence[int]) -> FloatArray:
        """Logits of a task [positions, classes] for some of the texts.

        Args:
            terms: Terms of the task.
            positions: Indices of the texts.
        """
        return self.served.logits(terms, [self.texts[position] for position in positions], self.source.longest)


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
    exact = _compared(source.title, wanted[:_TEXTS], answers[:_TEXTS], tolerance) if found.lossless else None
    if found.carried is not None:
        carried = replace(found.carried(task.terms), longest=source.longest)
        exact = _compared(carried.title, carried.logits(texts[:_TEXTS]), answers[:_TEXTS], tolerance)
    if exact is not None and not exact.exact:
        raise InvalidArgument(f"the stored task answers differently from {exact.sentence()}")
    accuracy = None
    if truth is not None:
        accuracy = AccuracyComparison(
            rows=len(truth), accuracy=accuracy_of(answers, truth), source_accuracy=accuracy_of(wanted, truth)
        )
    compared = _compared(source.title, wanted, answers, tolerance)
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


def _texts(source: SourceModel, rows: Rows | None) -> list[tuple[str, ...]]:
    """The labelled queries, or generated texts of many lengths, some of them pairs."""
    if rows is not None:
        return list(rows.texts)
    lines = make_texts(2 * _MADE, seed=3)
    pairs = list(zip(lines[:_PAIRS], lines[_PAIRS : 2 * _PAIRS], strict=True))
    # About one token per three letters.
    long = [(" ".join(lines[number:])[: (number + 1) * 3 * source.longest // _LONG],) for number in range(_LONG)]
    return [*pairs, *long, *((line,) for line in lines[: _MADE - _LONG - _PAIRS])]


def _compared(title: str, wanted: FloatArray, answers: FloatArray, tolerance: float) -> AnswerComparison:
    """Compare a task's logits with the expected ones, [rows, classes] each."""
    error = float(np.abs(answers - wanted).max() / max(1.0, float(np.abs(wanted).max())))
    same = answers.argmax(1) == wanted.argmax(1)
    best = np.sort(wanted, axis=1)
    # Rounding alone may swap two classes that differ by less than the tolerance.
    clear = best[:, -1] - best[:, -2] > 2 * tolerance * max(1.0, float(np.abs(wanted).max()))
    return AnswerComparison(
        source=title,
        texts=len(wanted),
        labels=float(same.mean()),
        clear_labels=float(same[clear].mean()) if clear.any() else 1.0,
        max_error=error if np.isfinite(error) else float(np.finfo(np.float32).max),
        tolerance=tolerance,
        agreement=agreement(wanted, answers),
    )


def agreement(wanted: FloatArray, answers: FloatArray) -> float:
    """Agreement of two models' logits, 0 to 1: the lesser of two means over rows.

    One is the share of equal labels. The other is 1 minus the total variation distance of the class probabilities,
    which shows differences that labels do not, where nearly all generated texts have the same label.

    Args:
        wanted: Logits of the source, [rows, classes].
        answers: Logits of the task, [rows, classes].
    """
    if not np.isfinite(answers).all():
        return 0.0
    distance = np.abs(softmax(wanted, dtype=np.float32) - softmax(answers, dtype=np.float32)).sum(axis=1) / 2
    return min(float((wanted.argmax(1) == answers.argmax(1)).mean()), 1.0 - float(distance.mean()))


def accuracy_of(logits: FloatArray, truth: npt.NDArray[np.int64]) -> float:
    """Share of the rows with the correct label.

    Args:
        logits: Logits [rows, classes].
        truth: Number of the correct class of each row.
    """
    return float((logits.argmax(1) == truth).mean())
