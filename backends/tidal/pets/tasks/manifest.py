"""What `task.json` says of a task: its kind, the base that it was made for, its labels and where it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from tidal.errors import InvalidArgument
from tidal.manifest import FileRecord, Strict
from tidal.pets.tensor_file import read_bounded

TASK_FILE = "task.json"
TENSORS_FILE = "task.safetensors"
_MOST_JSON_BYTES = 1 << 20
_DIGEST = r"^[0-9a-f]{64}$"

Label = Annotated[str, Field(min_length=1, max_length=256)]


class Kept(Strict):
    """How well a task answers beside the fine-tuned model that it was derived from, on labelled queries."""

    rows: int = Field(ge=1)
    accuracy: float = Field(ge=0, le=1)
    source_accuracy: float = Field(ge=0, le=1)


class Provenance(Strict):
    """Where a task's parameters came from."""

    format: str = Field(description="what they were imported from: peft, adapterhub, checkpoint; or trained")
    source: str = Field(description="folder or model")
    notes: tuple[str, ...] = Field((), description="what was decided or left out on the way")
    kept: Kept | None = None


class TaskInfo(Strict):
    """`task.json`; the task's name is its folder's."""

    format: Literal[1] = 1
    kind: str = Field(min_length=1, max_length=128)
    base: str = Field(pattern=_DIGEST, description="digest of the base that it was made for")
    labels: tuple[Label, ...] = Field(min_length=1, max_length=10_000)
    created: str = Field(description="UTC time, ISO 8601")
    tensors: FileRecord
    memory_bytes: int = Field(ge=0, description="what its terms take in memory")
    provenance: Provenance

    @model_validator(mode="after")
    def _check(self) -> TaskInfo:
        if len(set(self.labels)) != len(self.labels):
            raise ValueError("labels must differ")
        if self.tensors.path != TENSORS_FILE:
            raise ValueError(f"tensors must be in {TENSORS_FILE}")
        return self


def read_task_info(folder: Path) -> TaskInfo:
    """Read and validate a task's `task.json`.

    Raises:
        InvalidArgument: it is missing, too long, or not valid, and why.
    """
    path = folder / TASK_FILE
    if not path.exists():
        raise InvalidArgument(f"{path} is missing: this is not a task's folder")
    try:
        return TaskInfo.model_validate_json(read_bounded(path, _MOST_JSON_BYTES))
    except ValidationError as error:
        raise InvalidArgument(f"{path} is not valid: {problems(error)}") from None


def problems(error: ValidationError) -> str:
    """What is wrong with a `task.json`, the first of it."""
    return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors()[:3])
