"""JSON files beside a model that other processes replace: reading, validation errors, and detection of a change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from tidal.errors import InvalidArgument

Stamp = tuple[int, int, int] | None
_Content = TypeVar("_Content", bound=BaseModel)


def read_validated(path: Path, content: type[_Content]) -> _Content | None:
    """Read a JSON file; None where there is none.

    Args:
        path: Path of the file.
        content: Class of its content.

    Raises:
        InvalidArgument: The file is not valid; the message names its path, the field and what is accepted.
    """
    try:
        return content.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise InvalidArgument(f"{path}: {sentence_of(error)}") from None


def file_stamp(path: Path) -> Stamp:
    """A value that differs after the file was replaced, to detect a change cheaply; None where there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    # File times have a resolution of some milliseconds, so two changes can share one; they cannot share an inode.
    return status.st_mtime_ns, status.st_ino, status.st_size


def sentence_of(error: ValidationError) -> str:
    """Return the first problems of a content as one sentence with the names of their fields."""
    problems = []
    for found in error.errors()[:3]:
        where = ".".join(str(part) for part in found["loc"] if part != "[key]")
        message = found["msg"].removeprefix("Value error, ")
        problems.append(f"{where}: {message[:1].lower()}{message[1:]}" if where else message)
    return "; ".join(problems)
