"""Progress of a start: a line for each model that loaded or did not, and one every 10 s for those that are loading.

tritonserver loads most models before it opens its ports, so its log is the only place that shows how far it has come.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

# After so many seconds without a line, one names what is loading.
SILENCE_S = 10.0
_LOADING = re.compile(r"\"?loading: ([^\s:\"]+):\d+\"?\s*$")
_LOADED = re.compile(r"\"?successfully loaded '([^']+)'\"?\s*$")

_log = logging.getLogger("tidal.serve")


class StartProgress:
    """What a start has loaded so far."""

    def __init__(
        self,
        models: Collection[str],
        dependents: Callable[[str], list[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin.

        Args:
            models: names of the models that are to be loaded.
            dependents: given a model, the models that need it.
            clock: now, in seconds.
        """
        self._models = frozenset(models)
        self._dependents = dependents
        self._clock = clock
        self._began: dict[str, float] = {}
        self._reported_s = clock()
        self.loaded: set[str] = set()
        self.failed: dict[str, str] = {}

    def loading(self, model: str) -> None:
        """Record that a load has begun."""
        if model in self._models:
            self._began.setdefault(model, self._clock())

    def succeeded(self, model: str) -> None:
        """Report a model that serves now."""
        if model not in self._models or model in self.loaded:
            return
        self.loaded.add(model)
        after = f" after {self._clock() - self._began[model]:.1f} s" if model in self._began else ""
        _log.info("%s: loaded%s (%d of %d)", model, after, len(self.loaded), len(self._models))
        self._reported_s = self._clock()

    def failure(self, model: str, reason: str) -> None:
        """Report a model that does not load, once."""
        self._began.pop(model, None)
        if model in self.failed:
            return
        self.failed[model] = reason
        _log.error("%s", self.sentence(model))
        self._reported_s = self._clock()

    def sentence(self, model: str) -> str:
        """A failure in words: the model, the reason, and the models that depend on it."""
        needed_by = self._dependents(model)
        verb = "depends" if len(needed_by) == 1 else "depend"
        depends = f"; {', '.join(needed_by)} {verb} on it" if needed_by else ""
        return f"model '{model}' does not load: {self.failed[model]}{depends}"

    def waiting(self) -> None:
        """Name what is loading when nothing was reported for `SILENCE_S`; call it now and then."""
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
    """What is appended to a log, line by line."""

    def __init__(self, path: Path | None, offset: int) -> None:
        """Begin.

        Args:
            path: the log; None where there is none to read, and no line ever comes.
            offset: bytes of it that are not read.
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
    """Report what lines of tritonserver's log say about loads."""
    for line in lines:
        if found := _LOADING.search(line):
            progress.loading(found.group(1))
        elif found := _LOADED.search(line):
            progress.succeeded(found.group(1))
