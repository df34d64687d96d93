"""The server that everything happens to, and what its clients and it have counted."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

import psutil

from reliability import counters
from reliability.load import Load
from reliability.models import Model, Repository
from testing.serving import Served, serving
from testing.waiting import until
from tidal.server.control import ServerControl
from tidal.server.stubs import Stub, live_stubs

# Models publish what they count five times a second, and on a machine that is busy with others every five seconds.
_COUNTED_WITHIN_S = 60.0
_PUBLISHED_AFTER_S = 6.0
_WARM_S = 60.0


@dataclass
class Bench:
    """A `tidal serve` over a repository, started when it is needed and again where it has ended.

    Attributes:
        repository: what is served.
        folder: for the servers' state and logs.
        quick: whether fewer requests and changes will do.
        counted: answers that clients have read, and those that the server counted, while loads ran.
    """

    repository: Repository
    folder: Path
    quick: bool
    counted: list[tuple[str, int, int]] = field(default_factory=list)
    _stack: ExitStack = field(default_factory=ExitStack)
    _served: Served | None = None
    # Models that were asked and not compared: what they have counted of it may be published later.
    _uncounted: set[str] = field(default_factory=set)

    @property
    def served(self) -> Served:
        """The running server; started, and warm, when this returns."""
        if self._served is None or not self.alive():
            self.stop()
            runtime = Path(mkdtemp(prefix="run-", dir=self.folder))
            self._served = self._stack.enter_context(serving(self.repository.folder, runtime, "--exit-timeout", "3"))
            self._warm_up()
        return self._served

    @property
    def models(self) -> tuple[Model, ...]:
        """Who is asked."""
        return self.repository.models

    @property
    def control(self) -> ServerControl:
        """The server's admin side."""
        state = self.served.state
        return ServerControl(state["http"], state["key"], state["grpc"])

    @property
    def server_pid(self) -> int:
        """Process id of tritonserver."""
        return int(self.served.report["server_pid"])

    def alive(self) -> bool:
        """Whether the server that was started last runs."""
        served = self._served
        return served is not None and served.process.poll() is None and _runs(int(served.report["server_pid"]))

    def stop(self) -> None:
        """End the server, if one runs."""
        self._stack.close()
        self._served = None
        self._uncounted.clear()

    def stubs(self, model: str) -> list[Stub]:
        """Processes that serve a model."""
        return [s for s in live_stubs(self.server_pid) if s.model == model and not s.completes_config]

    def processes(self) -> set[int]:
        """Process ids of the server and of all stubs that serve."""
        return {self.server_pid, *(s.pid for s in live_stubs(self.server_pid) if not s.completes_config)}

    @contextmanager
    def load(
        self,
        models: Sequence[Model] | None = None,
        *,
        uncounted: Collection[str] = (),
        timeout_s: float = 20.0,
        pause_s: float = 0.1,
    ) -> Iterator[Load]:
        """Ask models until the block ends; then compare what was answered with what the server counted.

        Args:
            models: who is asked; all that there are when None.
            uncounted: models whose counters are not compared, because others ask them too, or their process is killed;
                whether or not they are asked here.
            timeout_s: see `Load`.
            pause_s: see `Load`.
        """
        models = self.models if models is None else models
        report = self.served.report
        compared = [model for model in models if model.name not in uncounted]
        if self._uncounted.intersection(model.name for model in compared):
            until(self._settled, _COUNTED_WITHIN_S)
            self._uncounted.clear()
        self._uncounted.update(uncounted)
        before = counters.answered(report["metrics"], compared)
        with Load(report["grpc"], report["http"], models, timeout_s=timeout_s, pause_s=pause_s) as load:
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

    def _settled(self) -> bool:
        before = self._answered()
        time.sleep(_PUBLISHED_AFTER_S)
        return self._answered() == before

    def _answered(self) -> dict[str, int]:
        return counters.answered(self.served.report["metrics"], self.models)

    def _warm_up(self) -> None:
        assert self._served is not None
        report = self._served.report
        with Load(report["grpc"], report["http"], self.models, timeout_s=_WARM_S, pause_s=0.0) as load:
            until(lambda: len({each.model for each in load.sent}) == len(self.models), _WARM_S)
        failures = load.failures()
        if failures:
            raise RuntimeError(f"the server does not serve: {failures[0]}")
        # So that no answer of these is counted later.
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
