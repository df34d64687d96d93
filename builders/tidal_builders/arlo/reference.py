"""Reads the source model once: its properties, tokenizer, sample queries and outputs for them.

They are kept on disk, so that a resumed build need not load the source model again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from tidal.engine_model.manifest import MainOutput
from tidal.errors import InvalidArgument
from tidal_builders.arlo.spec import ArloSpec
from tidal_builders.arrays import write_arrays
from tidal_builders.encoder_tasks.entries import BUILD_TASKS
from tidal_builders.encoder_tasks.masked_samples import with_masks
from tidal_builders.samples import CALIBRATION, VERIFICATION, Row, draw_samples, sample_texts
from tidal_builders.source_tokenizer import write_tokenizer

if TYPE_CHECKING:
    from tidal_builders.arlo.source import Source

_FACTS, _ROWS, _OUTPUTS, _CALIBRATION = "facts.json", "rows.npz", "outputs.npz", "calibration.npz"
TOKENIZER = "tokenizer.json"


class Facts(BaseModel):
    """Properties of the source model that serving needs.

    Attributes:
        architecture: Class of the model.
        max_length: Maximum input length in tokens.
        labels: Names of the labels; empty if the task has none.
        settings: Settings of the task.
        main_output: Output of the engines that answers are computed from.
        type_ids: Whether the model has an input `token_type_ids`.
        pad_token_id: Token id of the padding.
    """

    architecture: str
    max_length: int
    labels: tuple[str, ...]
    settings: dict[str, Any]
    main_output: MainOutput
    type_ids: bool
    pad_token_id: int

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the compiled model's inputs."""
        return ("input_ids", "attention_mask", *(["token_type_ids"] if self.type_ids else []))


@dataclass(frozen=True, slots=True)
class Reference:
    """Properties and outputs of the source model.

    Attributes:
        facts: Properties of the model.
        rows: Sample queries: int64 arrays of shape [length] by input name.
        outputs: Outputs of the model for each query alone, by name.
        calibration: Queries for int8 calibration; empty if the spec needs none.
        tokenizer: File of the tokenizer.
    """

    facts: Facts
    rows: list[dict[str, npt.NDArray[Any]]]
    outputs: list[dict[str, npt.NDArray[Any]]]
    calibration: list[dict[str, npt.NDArray[Any]]]
    tokenizer: Path


def write_reference(
    folder: Path, source: Source, spec: ArloSpec, samples: str | None, progress: Callable[[float], None]
) -> None:
    """Draw queries, run the source model on them, and write everything into a folder.

    Args:
        folder: Existing folder to write into.
        source: The source model.
        spec: Spec of the model.
        samples: Content of the spec's samples file, if it names one.
        progress: Called with the completed share, 0 to 1.

    Raises:
        InvalidArgument: The spec's lengths exceed the model's, or its samples contain no text.
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
        labels=source.prepared.labels,
        settings=source.prepared.settings,
        main_output=source.main_output,
        type_ids=source.type_ids,
        pad_token_id=source.tokenizer.pad_token_id or 0,
    )
    to_verify, to_calibrate = sample_texts(samples)
    names = facts.input_names
    pairs = BUILD_TASKS[source.task].pairs
    rows = draw_samples(source.tokenizer, to_verify, longest, VERIFICATION, names, seed=1, pairs=pairs)
    calibration: list[Row] = []
    if spec.precision in ("int8", "auto"):
        calibration = draw_samples(source.tokenizer, to_calibrate, longest, CALIBRATION, names, seed=2, pairs=pairs)
    if source.prepared.mask_id is not None:
        special = source.tokenizer.all_special_ids
        rows = with_masks(rows, source.prepared.mask_id, special, seed=3)
        calibration = with_masks(calibration, source.prepared.mask_id, special, seed=4)
    _save(folder / _ROWS, rows)
    outputs = []
    for number, row in enumerate(rows):
        outputs.append(source.outputs(row, attention="attention_received" in spec.outputs))
        progress((number + 1) / len(rows))
    _save(folder / _OUTPUTS, outputs)
    _save(folder / _CALIBRATION, calibration)
    write_tokenizer(source.tokenizer, folder / TOKENIZER)
    (folder / _FACTS).write_text(facts.model_dump_json())


def read_reference(folder: Path) -> Reference:
    """Read a folder that `write_reference` wrote."""
    return Reference(
        Facts.model_validate_json((folder / _FACTS).read_bytes()),
        _load(folder / _ROWS),
        _load(folder / _OUTPUTS),
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
