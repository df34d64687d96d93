"""What is taken from the source model once: its facts, tokenizer, sample queries and its answers to them.

Kept on disk, so that a build that goes on after a kill need not load the source model again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from tidal.errors import InvalidArgument
from tidal_builders.arlo.spec import ArloSpec
from tidal_builders.arrays import write_arrays
from tidal_builders.samples import CALIBRATION, VERIFICATION, Row, draw_samples, sample_texts
from tidal_builders.source_tokenizer import write_tokenizer

if TYPE_CHECKING:
    from tidal_builders.arlo.source import Source

_FACTS, _ROWS, _ANSWERS, _CALIBRATION = "facts.json", "rows.npz", "answers.npz", "calibration.npz"
TOKENIZER = "tokenizer.json"


class Facts(BaseModel):
    """The source model by what serving needs to know of it."""

    architecture: str
    max_length: int
    labels: tuple[str, ...]
    type_ids: bool
    pad_token_id: int

    @property
    def input_names(self) -> tuple[str, ...]:
        """Inputs of the compiled model."""
        return ("input_ids", "attention_mask", *(["token_type_ids"] if self.type_ids else []))


@dataclass(frozen=True, slots=True)
class Reference:
    """Facts, queries (int64 arrays [length] by input name) and the source model's answers to each alone."""

    facts: Facts
    rows: list[dict[str, npt.NDArray[Any]]]
    answers: list[dict[str, npt.NDArray[Any]]]
    calibration: list[dict[str, npt.NDArray[Any]]]
    tokenizer: Path


def write_reference(
    folder: Path, source: Source, spec: ArloSpec, samples: str | None, progress: Callable[[float], None]
) -> None:
    """Draw queries, ask the source model, and write everything into `folder`.

    Raises:
        InvalidArgument: the spec's lengths exceed the model's, or its samples hold no text.
    """
    longest = source.max_length
    if spec.lengths != "auto":
        longest = int(spec.lengths[-1])
        if longest > source.max_length:
            raise InvalidArgument(
                f"field 'lengths': {longest} tokens exceed the model's longest input of {source.max_length}"
            )
    facts = Facts(
        architecture=type(source.model).__name__,
        max_length=longest,
        labels=source.labels,
        type_ids=source.type_ids,
        pad_token_id=source.tokenizer.pad_token_id or 0,
    )
    to_verify, to_calibrate = sample_texts(samples)
    names = facts.input_names
    rows = draw_samples(source.tokenizer, to_verify, longest, VERIFICATION, names, seed=1)
    calibration: list[Row] = []
    if spec.precision in ("int8", "auto"):
        calibration = draw_samples(source.tokenizer, to_calibrate, longest, CALIBRATION, names, seed=2)
    _save(folder / _ROWS, rows)
    answers = []
    for number, row in enumerate(rows):
        answers.append(source.outputs(row, spec.outputs))
        progress((number + 1) / len(rows))
    _save(folder / _ANSWERS, answers)
    _save(folder / _CALIBRATION, calibration)
    write_tokenizer(source.tokenizer, folder / TOKENIZER)
    (folder / _FACTS).write_text(facts.model_dump_json())


def read_reference(folder: Path) -> Reference:
    """Read what `write_reference` wrote."""
    return Reference(
        Facts.model_validate_json((folder / _FACTS).read_bytes()),
        _load(folder / _ROWS),
        _load(folder / _ANSWERS),
        _load(folder / _CALIBRATION),
        folder / TOKENIZER,
    )


def _save(path: Path, rows: Sequence[Mapping[str, npt.NDArray[Any]]]) -> None:
    arrays = {f"{number}/{name}": array for number, row in enumerate(rows) for name, array in row.items()}
    write_arrays(path, arrays)


def _load(path: Path) -> list[dict[str, npt.NDArray[Any]]]:
    rows: dict[int, dict[str, npt.NDArray[Any]]] = {}
    with np.load(path, allow_pickle=False) as arrays:
        for key in arrays.files:
            number, _, name = key.partition("/")
            rows.setdefault(int(number), {})[name] = arrays[key]
    return [rows[number] for number in sorted(rows)]
