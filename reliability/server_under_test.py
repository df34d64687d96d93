"""The server under test, and the answers that its clients and it have counted."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

import psutil

from reliability import counters
from reliability.load import BackgroundLoad
from reliability.models import BuiltRepository, ServedModel
from testing.serving import Served, serving
from testing.waiting import until
from tidal.server.control import ServerControl
from tidal.server.stubs import Stub, live_stubs

# Models publish their counters five times per second, on a busy machine every five seconds.
_COUNTED_WITHIN_S = 60.0
_PUBLISHED_AFTER_S = 6.0
_WARM_S = 60.0


@dataclass
class ServerUnderTest:
    """A `tidal serve` over a repository, started on demand and restarted if it has ended.

    Attributes:
        repository: Built models to serve.
        folder: Folder of the servers' state and logs.
        quick: Whether fewer requests and changes suffice.
        counted: Answers that clients received and that the server counted, by model and load.
    """

    repository: BuiltRepository
    folder: Path
    quick: bool
    counted: list[tuple[str, int, int]] = field(default_factory=list)
    _stack: ExitStack = field(default_factory=ExitStack)
    _served: Served | None = None
    # Models that received requests and were not compared: their counters may be published later.
    _uncounted: set[str] = field(default_factory=set)

    @property
    def served(self) -> Served:
        """The running server, started and warmed up."""
        if self._served is None or not self.alive():
            self.stop()
            runtime = Path(mkdtemp(prefix="run-", dir=self.folder))
            self._served = self._stack.enter_context(serving(self.repository.folder, runtime, "--exit-timeout", "3"))
            self._warm_up()
        return self._served

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """Models that receive requests."""
        return self.repository.models

    @property
    def control(self) -> ServerControl:
        """Control interface of the server."""
        state = self.served.state
        return ServerControl(state["http"], state["key"], state["grpc"])

    @property
    def server_pid(self) -> int:
        """Process id of tritonserver."""
        return int(self.served.report["server_pid"])

    def alive(self) -> bool:
        """Return whether the server that was started last is running."""
        served = self._served
        return served is not None and served.process.poll() is None and _runs(int(served.report["server_pid"]))

    def stop(self) -> None:
        """Stop the server if it is running."""
        self._stack.close()
        self._served = None
        self._uncounted.clear()

    def stubs(self, model: str) -> list[Stub]:
        """Return the processes that serve a model."""
        return [s for s in live_stubs(self.server_pid) if s.model == model and not s.completes_config]

    def processes(self) -> set[int]:
        """Return the process ids of the server and of all serving stubs."""
        return {self.server_pid, *(s.pid for s in live_stubs(self.server_pid) if not s.completes_config)}

    @contextmanager
    def load(
        self,
        models: Sequence[ServedModel] | None = None,
        *,
        uncounted: Collection[str] = (),
        timeout_s: float = 20.0,
        pause_s: float = 0.1,
    ) -> Iterator[BackgroundLoad]:
        """Send requests to models until the block ends; then compare the answers with the server's counters.

        Args:
            models: Models that receive requests; None: all.
            uncounted: Names of models whose counters are not compared, because other clients use them too or their
                process is killed.
            timeout_s: Time that a client waits for an answer, seconds.
            pause_s: Pause between two requests of a client, seconds.
        """
        models = self.models if models is None else models
        report = self.served.report
        compared = [model for model in models if model.name not in uncounted]
        if self._uncounted.intersection(model.name for model in compared):
            until(self._counters_stable, _COUNTED_WITHIN_S)
            self._uncounted.clear()
        self._uncounted.update(uncounted)
        before = counters.answered(report["metrics"], compared)
        with BackgroundLoad(report["grpc"], report["http"], models, timeout_s=timeout_s, pause_s=pause_s) as load:
            yield load
        if not self.alive():
            return
        answers = load.answered()
        found: dict[str, int] = {}

        def agree() -> bool:
            now = counters.answered(report["metrics"], compared)
            found.update({name: now[name] - before[name] for name in now})
            return all(found[model.name] == answers[model.name] for model in compared)

        until(agree, _COUNTED_WITHIN_S)
        self.counted += [(model.name, answers[model.name], found[model.name]) for model in compared]

    def _counters_stable(self) -> bool:
        before = self._answered()
        time.sleep(_PUBLISHED_AFTER_S)
        return self._answered() == before

    def _answered(self) -> dict[str, int]:
        return counters.answered(self.served.report["metrics"], self.models)

    def _warm_up(self) -> None:
        assert self._served is not None
        report = self._served.report
        with BackgroundLoad(report["grpc"], report["http"], self.models, timeout_s=_WARM_S, pause_s=0.0) as load:
            until(lambda: len({each.model for each in load.sent}) == len(self.models), _WARM_S)
        failures = load.failures()
        if failures:
            raise RuntimeError(f"the server does not answer: {failures[0]}")
        # Wait until these answers are counted, so that none is counted later.
        sent = load.answered()

        def counted() -> bool:
            now = counters.answered(report["metrics"], self.models)
            return all(now[name] >= sent[name] for name in now)

        until(counted, _COUNTED_WITHIN_S)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
