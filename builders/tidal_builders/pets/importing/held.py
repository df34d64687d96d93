"""Whether a stored task answers as the model that it was made of, on the engine that serves it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tidal import device
from tidal.errors import InvalidArgument, TidalError
from tidal.pets.engine.opening import open_pets_engine
from tidal.pets.manifest import ENGINE_FOLDER, PetsManifest, load_pets_manifest
from tidal.pets.tasks.folder import Task
from tidal.pets.tasks.manifest import Held, Kept, Provenance
from tidal.pets.terms import FloatArray, TaskTerms
from tidal.text.tokenizer import open_tokenizer
from tidal_builders.pets.importing.found import Imported, Wishes
from tidal_builders.pets.importing.sources import SourceModel
from tidal_builders.rows import Columns, Rows, label_numbers, read_rows
from tidal_builders.runtime_options import DEFAULT_TOLERANCE
from tidal_builders.texts import make_texts

Texts = Sequence[tuple[str, ...]]

# Of a task that leaves some of the checkpoint's changes out: the least share of labels that have to stay, and with
# labelled queries the accuracy that may be lost instead.
LEAST_KEPT = 0.9
MOST_LOST = 0.02
# Texts that answers are compared on, and rows of a batch.
_TEXTS, _BATCH = 48, 16
_LONG, _PAIRS = 8, 8


@dataclass(frozen=True, slots=True)
class Served:
    """A published base with its engine open, which answers as the server does, one batch at a time."""

    version: Path
    manifest: PetsManifest

    def logits(self, terms: TaskTerms, texts: Texts, longest: int) -> FloatArray:
        """Answers [rows, classes] of a task to texts, those beyond `longest` tokens cut.

        Raises:
            TidalError: The engine cannot be opened on this machine.
        """
        manifest = self.manifest
        engine = open_pets_engine(
            manifest.engine, self.version / ENGINE_FOLDER, threads=manifest.threads, device=manifest.device.kind,
            precision=manifest.precision, profile=manifest.profile,
        )  # fmt: skip
        tokenizer = open_tokenizer(self.version / manifest.tokenizer.file)
        tokenizer.enable_truncation(min(longest, manifest.max_length))
        encoded = [tokenizer.encode(text[0], text[1] if len(text) > 1 else None) for text in texts]
        task = engine.add(terms)
        found = np.zeros((len(texts), len(terms.head.labels)), np.float32)
        # Texts of similar length in a batch, since batches are padded.
        order = sorted(range(len(texts)), key=lambda row: len(encoded[row].ids))
        for begin in range(0, len(order), _BATCH):
            rows = order[begin : begin + _BATCH]
            lengths = np.array([len(encoded[row].ids) for row in rows], np.int32)
            ids, types = (np.zeros((len(rows), int(lengths.max())), np.int32) for _ in range(2))
            for place, row in enumerate(rows):
                ids[place, : lengths[place]] = encoded[row].ids
                types[place, : lengths[place]] = encoded[row].type_ids
            kinds = types if manifest.tokenizer.type_ids else None
            pooled = engine.pooled([task] * len(rows), ids, lengths, kinds)
            found[rows] = pooled @ terms.head.weight.T + terms.head.bias
        engine.remove(task)
        return found


def open_served(version: Path) -> Served:
    """A published version of a base.

    Raises:
        InvalidArgument: It is not valid, or was made for another device.
    """
    manifest = load_pets_manifest(version)
    manifest.check(version, device.here(manifest.device.kind))
    return Served(version, manifest)


def hold(task: Task, found: Imported, version: Path, wishes: Wishes, *, half: bool) -> Provenance:
    """Compare a stored task with the model that it was made of.

    Args:
        task: As it was read back from where it was stored.
        found: What the import made, with its source.
        version: Folder of the base's published version.
        wishes: `data` are labelled queries, else texts are made; with `force` nothing is refused.
        half: Whether the values were stored as float16.

    Returns:
        Where the task came from, with what was found.

    Raises:
        InvalidArgument: The task does not answer as its source, or cannot be compared; says the figures. Or the data
            are wrong.
    """
    made = found.provenance
    rows = None if wishes.data is None else read_rows(wishes.data, Columns())
    truth = None if rows is None else label_numbers(rows, task.terms.head.labels)
    try:
        return _hold(task, found, version, rows, truth, half=half)
    except TidalError as error:
        if not wishes.force:
            raise InvalidArgument(f"{error}; nothing was added (--force adds it all the same)") from None
        return made.model_copy(update={"notes": (*made.notes, f"added by --force: {error}")})


def _hold(
    task: Task,
    found: Imported,
    version: Path,
    rows: Rows | None,
    truth: npt.NDArray[np.int64] | None,
    *,
    half: bool,
) -> Provenance:
    if found.source is None:
        raise InvalidArgument(
            "the task cannot be compared with its source: the base's own files are not on this machine; name their "
            "folder by --base-model FOLDER"
        )
    served, source = open_served(version), found.source()
    source = replace(source, longest=min(source.longest, served.manifest.max_length))
    texts = _texts(source, rows)
    # Of all kinds: their values differ from the source's by how they are stored and computed alone.
    tolerance = DEFAULT_TOLERANCE[served.manifest.precision] + half * DEFAULT_TOLERANCE["fp16"]
    answers, wanted = served.logits(task.terms, texts, source.longest), source.logits(texts[:_TEXTS])
    held = _compared(source.title, wanted, answers[:_TEXTS], tolerance)
    exact = held if found.lossless else None
    if found.carried is not None:
        carried = replace(found.carried(task.terms), longest=source.longest)
        exact = _compared(carried.title, carried.logits(texts[:_TEXTS]), answers[:_TEXTS], tolerance)
    if exact is not None and not exact.exact:
        raise InvalidArgument(f"the stored task does not answer as {exact.sentence()}")
    kept = None
    if truth is not None:
        before = np.concatenate([wanted, source.logits(texts[_TEXTS:])]) if texts[_TEXTS:] else wanted
        kept = Kept(rows=len(truth), accuracy=_right(answers, truth), source_accuracy=_right(before, truth))
        if kept.source_accuracy - kept.accuracy > MOST_LOST:
            raise InvalidArgument(
                f"accuracy on {kept.rows} queries is {kept.accuracy:.2%}, that of {source.title} "
                f"{kept.source_accuracy:.2%}; accepted is a loss of up to {MOST_LOST:.0%}{_advice(found)}"
            )
    elif held.labels < LEAST_KEPT:
        raise InvalidArgument(
            f"{held.labels:.1%} of {held.texts} texts keep the label of {source.title}, {LEAST_KEPT:.0%} must"
            f"{_advice(found)}"
        )
    return found.provenance.model_copy(update={"held": held, "kept": kept})


def _advice(found: Imported) -> str:
    return "" if found.lossless else ": a lower --sparsity keeps more of the checkpoint"


def _texts(source: SourceModel, rows: Rows | None) -> list[tuple[str, ...]]:
    """The labelled queries, or made texts of many lengths, some of them pairs."""
    if rows is not None:
        return list(rows.texts)
    lines = make_texts(4 * _TEXTS, seed=3)
    plain = [(line,) for line in lines[: _TEXTS - _LONG - _PAIRS]]
    pairs = list(zip(lines[:_PAIRS], lines[_PAIRS : 2 * _PAIRS], strict=True))
    # About a token for every three letters.
    long = [(" ".join(lines[number:])[: (number + 1) * 3 * source.longest // _LONG],) for number in range(_LONG)]
    return [*plain, *pairs, *long]


def _compared(title: str, wanted: FloatArray, answers: FloatArray, tolerance: float) -> Held:
    """Figures of a task's answers beside those that it should give, [rows, classes] each."""
    error = float(np.abs(answers - wanted).max() / max(1.0, float(np.abs(wanted).max())))
    same = answers.argmax(1) == wanted.argmax(1)
    best = np.sort(wanted, axis=1)
    # Two classes that are nearer to each other than the tolerance may change places by rounding alone.
    clear = best[:, -1] - best[:, -2] > 2 * tolerance * max(1.0, float(np.abs(wanted).max()))
    return Held(
        source=title,
        texts=len(wanted),
        labels=float(same.mean()),
        clear_labels=float(same[clear].mean()) if clear.any() else 1.0,
        max_error=error if np.isfinite(error) else float(np.finfo(np.float32).max),
        tolerance=tolerance,
    )


def _right(logits: FloatArray, truth: npt.NDArray[np.int64]) -> float:
    return float((logits.argmax(1) == truth).mean())
