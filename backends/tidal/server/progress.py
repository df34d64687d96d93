"""Progress of a start: a line for each model that loaded or failed, and one every 10 s for those that are loading.

tritonserver loads most models before it opens its ports, so only its log shows the progress.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

# After this time without a line, one names the models that are loading.
SILENCE_S = 10.0
_LOADING = re.compile(r"\"?loading: ([^\s:\"]+):\d+\"?\s*$")
_LOADED = re.compile(r"\"?successfully loaded '([^']+)'\"?\s*$")

_log = logging.getLogger("tidal.serve")


class StartProgress:
    """Models that a start has loaded so far, and those that failed."""

    def __init__(
        self,
        models: Collection[str],
        dependents: Callable[[str], list[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the record of a start that has loaded nothing yet.

        Args:
            models: Names of the models that are to be loaded.
            dependents: Returns the models that require a model.
            clock: Returns the time in seconds.
        """
        self._models = frozenset(models)
        self._dependents = dependents
        self._clock = clock
        self._began: dict[str, float] = {}
        self._reported_s = clock()
        self.loaded: set[str] = set()
        self.failed: dict[str, str] = {}

    def loading(self, model: str) -> None:
        """Record that the load of a model has begun."""
        if model in self._models:
            self._began.setdefault(model, self._clock())

    def succeeded(self, model: str) -> None:
        """Report that a model serves now."""
        if model not in self._models or model in self.loaded:
            return
        self.loaded.add(model)
        after = f" after {self._clock() - self._began[model]:.1f} s" if model in self._began else ""
        _log.info("%s: loaded%s (%d of %d)", model, after, len(self.loaded), len(self._models))
        self._reported_s = self._clock()

    def failure(self, model: str, reason: str) -> None:
        """Report that a model does not load; only the first reason is reported."""
        self._began.pop(model, None)
        if model in self.failed:
            return
        self.failed[model] = reason
        _log.error("%s", self.sentence(model))
        self._reported_s = self._clock()

    def sentence(self, model: str) -> str:
        """The failure of a model as a sentence: the reason, and the models that depend on it."""
        needed_by = self._dependents(model)
        verb = "depends" if len(needed_by) == 1 else "depend"
        depends = f"; {', '.join(needed_by)} {verb} on it" if needed_by else ""
        return f"model '{model}' does not load: {self.failed[model]}{depends}"

    def waiting(self) -> None:
        """Report the models that are loading where nothing was reported for `SILENCE_S`; call it regularly."""
        now = self._clock()
        if now - self._reported_s < SILENCE_S:
            return
        self._reported_s = now
        loading = [
            f"{name} ({now - began:.0f} s)"
            for name, began in sorted(self._began.items())
            if name not in self.loaded and name not in self.failed
        ]
        done, all_models = len(self.loaded), len(self._models)
        _log.info("still loading: %s; %d of %d are loaded", ", ".join(loading) or "-", done, all_models)


class LogReader:
    """Reads the lines that are appended to a log."""

    def __init__(self, path: Path | None, offset: int) -> None:
        """Create a reader.

        Args:
            path: File of the log; None where there is none, which gives no lines.
            offset: Number of bytes at its beginning to skip.
        """
        self._path = path
        self._offset = offset
        self._rest = b""

    def lines(self) -> list[str]:
        """Complete lines since the last call."""
        if self._path is None:
            return []
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                content = file.read()
        except OSError:
            return []
        self._offset += len(content)
        *lines, self._rest = (self._rest + content).split(b"\n")
        return [line.decode(errors="replace") for line in lines]


def follow(progress: StartProgress, lines: Iterable[str]) -> None:
    """Report the loads in lines of tritonserver's log.

    Args:
        progress: Receiver of the loads.
        lines: Complete lines of the log.
    """
    for line in lines:
        if found := _LOADING.search(line):
            progress.loading(found.group(1))
        elif found := _LOADED.search(line):
            progress.succeeded(found.group(1))
