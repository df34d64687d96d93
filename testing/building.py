"""Builds for tests: with few measurements, and in processes that can be killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from testing.waiting import until
from tidal_builders import timing
from tidal_builders.arlo import choices
from tidal_builders.kinds import KINDS
from tidal_builders.specs import load_spec

# Imported once by the server that the processes are forked from, since it takes seconds.
_PRELOADED = [
    "openvino",
    "openvino.frontend.pytorch.ts_decoder",
    "transformers.models.bert.modeling_bert",
    "transformers.models.bert.tokenization_bert",
    "testing.models",
    "tidal_builders.arlo.build",
    "tidal_builders.arlo.source",
    "tidal_builders.tabi.build",
]


@contextmanager
def short_timing() -> Iterator[None]:
    """Let builds measure latencies with few calls: the values have no meaning in tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "_BLOCK_S", 0.0)
        patch.setattr(choices, "_POINT_S", 0.0)
        patch.setattr(choices, "_POINT_CALLS", 1)
        assert timing.measure.__kwdefaults__ is not None
        patch.setitem(timing.measure.__kwdefaults__, "rounds", 1)
        yield


class BuildProcess:
    """A process that builds a spec.

    Args:
        spec: File of the spec.
        repository: Model repository.
        kill_at: Stage at whose start the process kills itself; None: none.
        changes: Attributes to set before the build, by dotted path; a function is one of a module.
    """

    def __init__(
        self, spec: Path, repository: Path, *, kill_at: str | None = None, changes: Mapping[str, object] | None = None
    ) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        self._started = context.Event()
        self._process: ForkServerProcess = context.Process(
            target=_build, args=(spec, repository, kill_at, dict(changes or {}), self._started), daemon=True
        )
        self._process.start()

    def wait_started(self) -> None:
        """Wait until the first stage of the build begins, or the build has failed."""
        assert until(lambda: self._started.is_set() or self._process.exitcode is not None)

    def kill(self) -> None:
        """Kill the process and wait for its end."""
        self._process.kill()
        self._process.join()

    def wait(self) -> int:
        """Wait for the end of the process; return its exit status, negative for a signal."""
        self._process.join(120)
        assert self._process.exitcode is not None
        return self._process.exitcode


def _build(spec: Path, repository: Path, kill_at: str | None, changes: Mapping[str, Any], started: Event) -> None:
    def report(stage: str, _share: float) -> None:
        started.set()
        if stage == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    loaded = load_spec(spec)
    with pytest.MonkeyPatch.context() as patch, short_timing():
        for path, value in changes.items():
            patch.setattr(path, value)
        KINDS[loaded.kind].run(loaded, repository, spec_file=spec, progress=report)
