"""The tasks: public text classification data, split so that training, selection and report never share a query.

`train.tsv.gz` is divided into queries to train levels on and queries for `tidal build` to calibrate and select with;
figures are reported on `dev.tsv.gz`.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

# Share of the train split that is held out for calibration and selection, and its approximate maximum: the builder
# runs the levels on these queries again for every pruning scale.
HELD_OUT = 0.25
MOST_HELD_OUT = 1500


@dataclass(frozen=True, slots=True)
class DataTask:
    """A task: the name of its data folder, and the training epochs of its levels."""

    name: str
    epochs: int


# Tasks in which a 2-layer and a 6-layer model differ little and much, and short and long ones, since an engine's share
# of a query's time grows with its length: sentiment (negation and contrast; 25 tokens), intents (mostly words; 10),
# topics of abstracts (words; 75), and whether a sentence answers a question (relating two texts needs depth; 55).
TASKS = (DataTask("sst2", 3), DataTask("clinc150", 5), DataTask("dbpedia14", 1), DataTask("qnli", 3))


@dataclass(frozen=True, slots=True)
class TaskQueries:
    """Labelled queries: one or two texts each; `truth` has the labels' names."""

    texts: tuple[tuple[str, ...], ...]
    truth: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.texts)

    def at(self, rows: list[int]) -> TaskQueries:
        """Return some of the queries.

        Args:
            rows: Indices of the queries.
        """
        return TaskQueries(tuple(self.texts[row] for row in rows), tuple(self.truth[row] for row in rows))


@dataclass(frozen=True, slots=True)
class TaskSplit:
    """A task's data in parts, and its labels in the models' order."""

    labels: tuple[str, ...]
    train: TaskQueries
    held_out: TaskQueries
    dev: TaskQueries


def load(data: Path, task: DataTask) -> TaskSplit:
    """Read a task and divide it; queries of the dev split are left out of the other parts.

    Args:
        data: Folder with the tasks' data.
        task: Task to read.

    Raises:
        SystemExit: The task is not in `data`.
    """
    folder = data / task.name
    if not (folder / "labels.json").exists():
        raise SystemExit(f"{folder} is missing: --data DIR needs {', '.join(each.name for each in TASKS)}")
    labels = tuple(json.loads((folder / "labels.json").read_text())["labels"])
    dev = _read(folder / "dev.tsv.gz", labels)
    rest = _read(folder / "train.tsv.gz", labels)
    seen = set(dev.texts)
    rows = [row for row, texts in enumerate(rest.texts) if texts not in seen]
    share = min(HELD_OUT, MOST_HELD_OUT / len(rows))
    held = {row for row in rows if _fraction(rest.texts[row]) < share}
    return TaskSplit(labels, rest.at([row for row in rows if row not in held]), rest.at(sorted(held)), dev)


def digest(data: Path, task: DataTask) -> str:
    """Return the hash of a task's data."""
    files = [data / task.name / name for name in ("labels.json", "train.tsv.gz", "dev.tsv.gz")]
    return hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()


def _read(file: Path, labels: tuple[str, ...]) -> TaskQueries:
    with gzip.open(file, "rt", encoding="utf-8", newline="\n") as lines:
        header, *rows = list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    place = header.index("label")
    texts = tuple(tuple(cell for i, cell in enumerate(row) if i != place) for row in rows)
    return TaskQueries(texts, tuple(labels[int(row[place])] for row in rows))


def _fraction(texts: tuple[str, ...]) -> float:
    """Return a number in [0, 1) that depends on the texts only, so that equal queries are in one part."""
    return int.from_bytes(hashlib.sha256("\t".join(texts).encode()).digest()[:8]) / 2**64
