"""State of a run beside its output: what has been written, so that an interrupted run continues exactly there."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tidal_client.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class BulkSettings:
    """What determines the vectors of a run: a run continues with equal settings only."""

    #: Number of texts, and hash of their content.
    texts: int
    digest: str
    model: str
    versions: tuple[str, ...]
    prompt: str | None
    dimensions: int | None
    dtype: str
    task: str | None = None


@dataclass(slots=True)
class Progress:
    """Requests of a run that are written, counted in the order in which they are formed."""

    #: Maximum number of rows of a request; the requests of a run are formed with the same number after a restart.
    max_rows: int
    #: All requests below this number are written.
    complete: int = 0
    #: Further requests that are written.
    ahead: set[int] = field(default_factory=set)

    def add(self, number: int) -> None:
        """Record a request as written."""
        self.ahead.add(number)
        while self.complete in self.ahead:
            self.ahead.remove(self.complete)
            self.complete += 1

    def __contains__(self, number: int) -> bool:
        return number < self.complete or number in self.ahead


def load(path: Path, settings: BulkSettings) -> Progress | None:
    """Return the progress of an interrupted run; None if there is none.

    Args:
        path: State file.
        settings: Settings of the run that continues it.

    Raises:
        InvalidArgument: The file is not a state, or is of a run with other settings; the message names the first that
            differs.
    """
    try:
        found = json.loads(path.read_bytes())
        then = {**found["settings"], "versions": tuple(found["settings"]["versions"])}
        progress = Progress(int(found["max_rows"]), int(found["complete"]), set(map(int, found["ahead"])))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(f"{path}: not the state of a run ({error}); delete it to start again") from None
    now = asdict(settings)
    differing = next((name for name in now if then.get(name) != now[name]), None)
    if differing is not None:
        name = "content of the input" if differing == "digest" else differing
        values = "" if differing == "digest" else f": {then.get(differing)!r} then, {now[differing]!r} now"
        raise InvalidArgument(
            f"{path}: an interrupted run differs in {name}{values}; delete it to start again, or give another --out"
        )
    return progress


def save(path: Path, settings: BulkSettings, progress: Progress) -> None:
    """Write the state so that after a crash either the old or the new one is there."""
    found = {
        "settings": asdict(settings),
        "max_rows": progress.max_rows,
        "complete": progress.complete,
        "ahead": sorted(progress.ahead),
    }
    fresh = path.with_name(f"{path.name}.new")
    with fresh.open("w") as file:
        json.dump(found, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def remove(paths: Iterable[Path]) -> None:
    """Remove files that may not exist."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
