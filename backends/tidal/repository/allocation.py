"""Number of instances of each runtime of a partitioned model: the file `<model>/allocation.json` (Arlo §3.3).

The file is next to the version folders, so that a publish keeps it:

    {"instances": {"64": 1, "512": 2}}

During a change the file also has `loaded`: the instances that the server has loaded so far. The front then uses the
smaller of the two counts, so that instances can be added and removed while no request runs on them.

On a node of a cluster that is no entrance it has `"entrance": false`: the front refuses queries, and the longest
runtime may have no instance.

The file applies only to a server that loads its models by it: `tidal serve` sets `TIDAL_ALLOCATION=file` in the
server's environment. Under a stock tritonserver the counts in the runtimes' config.pbtxt apply.
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
from tidal.repository.validated_file import Stamp, file_stamp, read_validated, sentence_of

ALLOCATION_FILE = "allocation.json"
# Set to `file` in the environment of a server whose models are loaded by their allocation.
ALLOCATION_VARIABLE = "TIDAL_ALLOCATION"
# More than any server can hold: every instance is a process with an engine.
MAX_INSTANCES = 1024

Counts = dict[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=0, le=MAX_INSTANCES)]]


class Allocation(BaseModel):
    """Instance counts of a partitioned model, by the max_length of their runtime in tokens."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    instances: Counts = Field(min_length=1, description="requested instances of each runtime")
    loaded: Counts | None = Field(None, description="instances loaded on the server during a change")
    entrance: bool = Field(
        True, description="whether the front accepts queries; if not, the instances run those of other nodes only"
    )

    @model_validator(mode="after")
    def _check(self) -> Allocation:
        longest = max(self.instances)
        if self.entrance and self.instances[longest] < 1:
            # Arlo, Equation 7: every query fits the longest runtime, and some fit no other.
            raise ValueError(f"instances: the longest runtime, {longest}, needs at least 1 instance, got 0")
        if self.loaded is not None and self.loaded.keys() != self.instances.keys():
            raise ValueError(f"loaded: names runtimes {listed(self.loaded)}, instances names {listed(self.instances)}")
        return self

    def serving(self) -> dict[int, int]:
        """Instances that the front may use, by max_length ascending: at most those requested and those loaded.

        The longest runtime of an entrance keeps 1 (Arlo, Equation 7) even where none is loaded: a server may lack it
        for a moment, and a front needs one runtime that fits every query. `loaded` itself may be 0, so that an
        interrupted change can be read and completed.
        """
        loaded = self.instances if self.loaded is None else self.loaded
        serving = {length: min(self.instances[length], loaded[length]) for length in sorted(self.instances)}
        longest = max(serving)
        return {**serving, longest: max(int(self.entrance), serving[longest])}

    def completed(self) -> Allocation:
        """Return the allocation after its change."""
        return self.model_copy(update={"loaded": None})

    def check(self, max_lengths: Iterable[int]) -> None:
        """Check the allocation against a model's runtimes.

        Args:
            max_lengths: Input lengths of the model's runtimes, in tokens.

        Raises:
            InvalidArgument: It names a runtime that the model does not have, or lacks one that it has.
        """
        known = set(max_lengths)
        if unknown := self.instances.keys() - known:
            raise InvalidArgument(f"instances names {listed(unknown)}, the model's runtimes are {listed(known)}")
        if missing := known - self.instances.keys():
            raise InvalidArgument(f"instances lacks {listed(missing)}, the model's runtimes are {listed(known)}")


def make_allocation(
    instances: Mapping[int, int], loaded: Mapping[int, int] | None = None, *, entrance: bool = True
) -> Allocation:
    """Validate an allocation.

    Args:
        instances: Requested instances by max_length in tokens.
        loaded: Instances loaded on the server during a change, for the same lengths; None without a change.
        entrance: Whether the front accepts queries.

    Raises:
        InvalidArgument: A count or length is not valid; the message names the field and what is accepted.
    """
    try:
        return Allocation(
            instances=dict(sorted(instances.items())),
            loaded=None if loaded is None else dict(sorted(loaded.items())),
            entrance=entrance,
        )
    except ValidationError as error:
        raise InvalidArgument(sentence_of(error)) from None


def read_allocation(model_dir: Path) -> Allocation | None:
    """Read a model's allocation; None where it has no such file.

    Args:
        model_dir: Folder of the front in the repository.

    Raises:
        InvalidArgument: The file is not valid; the message names its path, the field and what is accepted.
    """
    return read_validated(model_dir / ALLOCATION_FILE, Allocation)


def write_allocation(model_dir: Path, allocation: Allocation) -> None:
    """Write or replace a model's allocation atomically."""
    write_atomically(model_dir / ALLOCATION_FILE, allocation.model_dump_json(indent=1, exclude_defaults=True) + "\n")


def configured_instances(model_dir: Path, max_lengths: Iterable[int]) -> dict[int, int]:
    """Instances by max_length, ascending, that the config.pbtxt files of the runtimes' models specify.

    Args:
        model_dir: Folder of the front in the repository.
        max_lengths: Input lengths of its runtimes, in tokens.

    Raises:
        InvalidArgument: One of the files cannot be read.
    """
    folders = {n: model_dir.parent / runtime_model(model_dir.name, n) for n in sorted(max_lengths)}
    return {length: instance_count(read_config(folder)) for length, folder in folders.items()}


def usable_allocation(model_dir: Path, max_lengths: Iterable[int]) -> Allocation:
    """Allocation that a front in this process follows: the file's, or the instances of the runtimes' config.pbtxt.

    Args:
        model_dir: Folder of the front in the repository.
        max_lengths: Input lengths of the runtimes of the front's version, in tokens.

    Raises:
        InvalidArgument: The allocation or a config.pbtxt is not valid, or is for other runtimes.
    """
    lengths = sorted(max_lengths)
    allocation = read_allocation(model_dir) if os.environ.get(ALLOCATION_VARIABLE) == "file" else None
    if allocation is None:
        return make_allocation(configured_instances(model_dir, lengths))
    try:
        allocation.check(lengths)
    except InvalidArgument as error:
        raise InvalidArgument(f"{model_dir / ALLOCATION_FILE}: {error}") from None
    return allocation


def allocation_stamp(model_dir: Path) -> Stamp:
    """Stamp of a model's allocation, see `file_stamp`."""
    return file_stamp(model_dir / ALLOCATION_FILE)


def listed(lengths: Iterable[int]) -> str:
    """Return lengths as the part of a sentence."""
    return ", ".join(map(str, sorted(lengths))) or "none"
