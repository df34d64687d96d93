"""How many instances each runtime of a partitioned model gets: the file `<model>/allocation.json` (Arlo §3.3).

The file lies beside the versions, so that a publish does not lose it:

    {"instances": {"64": 1, "512": 2}}

`loaded` is beside it while a change is under way: what the server has loaded so far. The front then uses the smaller
of the two counts, so that instances may come and go without a request on them.

Only a server that loads its models by this file may be used by it: `tidal serve` says so in the server's environment.
Under a stock tritonserver the file counts for nothing, and the counts in the runtimes' config.pbtxt hold.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tidal.errors import InvalidArgument
from tidal.repository.config import instance_count, read_config
from tidal.repository.entries import write_atomically
from tidal.repository.names import runtime_model

ALLOCATION_FILE = "allocation.json"
# Set to `file` in the environment of a server whose models are loaded by their allocation.
ALLOCATION_VARIABLE = "TIDAL_ALLOCATION"
# Far beyond any server: every instance is a process with an engine.
MAX_INSTANCES = 1024

Counts = dict[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=0, le=MAX_INSTANCES)]]


class Allocation(BaseModel):
    """Instance counts by the max_length of their runtime, in tokens."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    instances: Counts = Field(min_length=1, description="wanted instances of each runtime")
    loaded: Counts | None = Field(None, description="instances on the server while a change is under way")

    @model_validator(mode="after")
    def _check(self) -> Allocation:
        longest = max(self.instances)
        if self.instances[longest] < 1:
            # Equation 7: every query fits the last runtime, and some fit no other.
            raise ValueError(f"instances: the longest runtime, {longest}, needs at least 1 instance, got 0")
        if self.loaded is not None and self.loaded.keys() != self.instances.keys():
            raise ValueError(
                f"loaded: names runtimes {_listed(self.loaded)}, instances names {_listed(self.instances)}"
            )
        return self

    def serving(self) -> dict[int, int]:
        """Instances that the front may use, by max_length ascending: never more than wanted, nor than loaded.

        The longest runtime keeps 1 (Eq. 7) also where none was loaded: a server may be without it for a moment, and a
        front without a level that takes every query could not run. `loaded` is told as it was, so that any change
        that was cut short can be read, and completed.
        """
        loaded = self.instances if self.loaded is None else self.loaded
        serving = {length: min(self.instances[length], loaded[length]) for length in sorted(self.instances)}
        longest = max(serving)
        return {**serving, longest: max(1, serving[longest])}

    def check(self, max_lengths: Iterable[int]) -> None:
        """Hold the allocation to a model's runtimes.

        Raises:
            InvalidArgument: it names a runtime that the model has not, or lacks one that it has.
        """
        known = set(max_lengths)
        if unknown := self.instances.keys() - known:
            raise InvalidArgument(f"instances names {_listed(unknown)}, the model's runtimes are {_listed(known)}")
        if missing := known - self.instances.keys():
            raise InvalidArgument(f"instances lacks {_listed(missing)}, the model's runtimes are {_listed(known)}")


def make_allocation(instances: Mapping[int, int], loaded: Mapping[int, int] | None = None) -> Allocation:
    """A validated allocation.

    Raises:
        InvalidArgument: the field that cannot be accepted, and what is.
    """
    try:
        return Allocation(
            instances=dict(sorted(instances.items())), loaded=None if loaded is None else dict(sorted(loaded.items()))
        )
    except ValidationError as error:
        raise InvalidArgument(_sentence(error)) from None


def read_allocation(model_dir: Path) -> Allocation | None:
    """A model's allocation, or None when it has no such file.

    Raises:
        InvalidArgument: the file cannot be accepted: its path, the field, and what is accepted.
    """
    path = model_dir / ALLOCATION_FILE
    try:
        return Allocation.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise InvalidArgument(f"{path}: {_sentence(error)}") from None


def write_allocation(model_dir: Path, allocation: Allocation) -> None:
    """Write or replace a model's allocation: a reader sees the old one or the new."""
    write_atomically(model_dir / ALLOCATION_FILE, allocation.model_dump_json(indent=1, exclude_none=True) + "\n")


def configured_instances(model_dir: Path, max_lengths: Iterable[int]) -> dict[int, int]:
    """Instances by max_length, ascending, as the config.pbtxt of the runtimes' models asks for.

    Raises:
        InvalidArgument: one of them cannot be read.
    """
    folders = {n: model_dir.parent / runtime_model(model_dir.name, n) for n in sorted(max_lengths)}
    return {length: instance_count(read_config(folder)) for length, folder in folders.items()}


def usable_instances(model_dir: Path, max_lengths: Iterable[int]) -> dict[int, int]:
    """Instances by max_length, ascending, that a front may use in the process that asks: those that are loaded.

    Args:
        model_dir: the front's folder in the repository.
        max_lengths: lengths of the runtimes of the front's version.

    Raises:
        InvalidArgument: the allocation or a config.pbtxt cannot be accepted, or is not for these runtimes.
    """
    lengths = sorted(max_lengths)
    allocation = read_allocation(model_dir) if os.environ.get(ALLOCATION_VARIABLE) == "file" else None
    if allocation is None:
        return configured_instances(model_dir, lengths)
    try:
        allocation.check(lengths)
    except InvalidArgument as error:
        raise InvalidArgument(f"{model_dir / ALLOCATION_FILE}: {error}") from None
    return allocation.serving()


def allocation_stamp(model_dir: Path) -> tuple[int, int, int] | None:
    """Differs after the file was replaced, to notice a change cheaply; None when there is no file."""
    try:
        found = os.stat(model_dir / ALLOCATION_FILE)
    except OSError:
        return None
    # File times are no finer than some milliseconds: two changes can share one, not one file.
    return found.st_mtime_ns, found.st_ino, found.st_size


def _sentence(error: ValidationError) -> str:
    problems = []
    for found in error.errors()[:3]:
        where = ".".join(str(part) for part in found["loc"] if part != "[key]")
        message = found["msg"].removeprefix("Value error, ")
        problems.append(f"{where}: {message[:1].lower()}{message[1:]}" if where else message)
    return "; ".join(problems)


def _listed(lengths: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(lengths))) or "none"
