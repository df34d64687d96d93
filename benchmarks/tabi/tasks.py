"""The tasks: public text classification data, split so that training, selection and report never share a query.

`train.tsv.gz` is divided into what levels are trained on and what `tidal build` calibrates and selects with;
`dev.tsv.gz` is what figures are reported on.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

# Share of the train split that is held out for calibration and selection, and about how many queries at most: the
# builder runs the levels on them again for every pruning scale.
HELD_OUT = 0.25
MOST_HELD_OUT = 1500


@dataclass(frozen=True, slots=True)
class Task:
    """A folder of the data, and how many times its levels see the training part."""

    name: str
    epochs: int


# Tasks in which a 2-layer and a 6-layer model differ little and much, and short and long ones, since an engine's share
# of a query's time grows with its length: sentiment (negation and contrast; 25 tokens), intents (mostly words; 10),
# topics of abstracts (words; 75), and whether a sentence answers a question (to relate two texts takes depth; 55).
TASKS = (Task("sst2", 3), Task("clinc150", 5), Task("dbpedia14", 1), Task("qnli", 3))


@dataclass(frozen=True, slots=True)
class Queries:
    """Labelled queries: one text each, or two; `truth` has the label's name."""

    texts: tuple[tuple[str, ...], ...]
    truth: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.texts)

    def at(self, rows: list[int]) -> Queries:
        """Some of the queries."""
        return Queries(tuple(self.texts[row] for row in rows), tuple(self.truth[row] for row in rows))


@dataclass(frozen=True, slots=True)
class Split:
    """All of a task's data, and its labels in the models' order."""

    labels: tuple[str, ...]
    train: Queries
    held_out: Queries
    dev: Queries


def load(data: Path, task: Task) -> Split:
    """Read a task and divide it; queries that dev has too are left out of the other parts.

    Raises:
        SystemExit: the task is not in `data`.
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
    return Split(labels, rest.at([row for row in rows if row not in held]), rest.at(sorted(held)), dev)


def digest(data: Path, task: Task) -> str:
    """Hash of a task's data."""
    files = [data / task.name / name for name in ("labels.json", "train.tsv.gz", "dev.tsv.gz")]
    return hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()


def _read(file: Path, labels: tuple[str, ...]) -> Queries:
    with gzip.open(file, "rt", encoding="utf-8", newline="\n") as lines:
        header, *rows = list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    place = header.index("label")
    texts = tuple(tuple(cell for i, cell in enumerate(row) if i != place) for row in rows)
    return Queries(texts, tuple(labels[int(row[place])] for row in rows))


def _fraction(texts: tuple[str, ...]) -> float:
    """A number in [0, 1) from the texts: equal queries fall on one side."""
    return int.from_bytes(hashlib.sha256("\t".join(texts).encode()).digest()[:8]) / 2**64
