"""Format of `task.json`: the base model that a task was made for, and its tensor file."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator

from tidal.errors import InvalidArgument
from tidal.manifest import FileRecord, Strict
from tidal.tensor_file import read_bounded

TASK_FILE = "task.json"
TENSORS_FILE = "task.safetensors"
_MAX_JSON_BYTES = 1 << 20
_DIGEST = r"^[0-9a-f]{64}$"

Label = Annotated[str, Field(min_length=1, max_length=256)]


class TaskRecord(Strict):
    """Fields of `task.json` that all systems share; the task's name is the name of its folder."""

    format: Literal[1] = 1
    base: str = Field(pattern=_DIGEST, description="digest of the base model that the task was made for")
    created: str = Field(description="UTC time, ISO 8601")
    tensors: FileRecord
    memory_bytes: int = Field(ge=0, description="size of the task in memory, in bytes")

    @model_validator(mode="after")
    def _check(self) -> TaskRecord:
        if self.tensors.path != TENSORS_FILE:
            raise ValueError(f"tensors must be in {TENSORS_FILE}")
        return self


class LabelledRecord(TaskRecord):
    """`task.json` of a task that may have labels."""

    labels: tuple[Label, ...] = Field((), max_length=10_000)

    @model_validator(mode="after")
    def _check_labels(self) -> LabelledRecord:
        if len(set(self.labels)) != len(self.labels):
            raise ValueError("labels must differ")
        return self


_Record = TypeVar("_Record", bound=TaskRecord)


def make_record(model: type[_Record], name: str, content: bytes, **fields: Any) -> _Record:
    """Make the `task.json` of a new task.

    Args:
        model: The system's model of `task.json`.
        name: Name of the task, for errors.
        content: Content of the tensor file.
        fields: All other fields.

    Raises:
        InvalidArgument: A field is not accepted.
    """
    tensors = FileRecord(path=TENSORS_FILE, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    try:
        return model(created=datetime.now(UTC).isoformat(timespec="seconds"), tensors=tensors, **fields)
    except ValidationError as error:
        raise InvalidArgument(f"task '{name}' cannot be stored: {_problems(error)}") from None


def read_record(folder: Path, model: type[_Record]) -> _Record:
    """Read and validate a task's `task.json`.

    Args:
        folder: Folder of the task.
        model: The system's model of `task.json`.

    Raises:
        InvalidArgument: The file is missing, too large or not valid; the message contains the reason.
    """
    path = folder / TASK_FILE
    if not path.exists():
        raise InvalidArgument(f"{path} is missing: this is not a task's folder")
    try:
        return model.model_validate_json(read_bounded(path, _MAX_JSON_BYTES))
    except ValidationError as error:
        raise InvalidArgument(f"{path} is not valid: {_problems(error)}") from None


def _problems(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors()[:3])
