"""One system under one load, and which settings of each baseline are loaded."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

from benchmarks.closed_loop import series
from benchmarks.flover.load import Load
from benchmarks.flover.outcome import Outcome, Watched, outcome_of
from benchmarks.flover.prepare import Artefacts
from benchmarks.flover.sending import Trace, send, warm_up
from benchmarks.flover.systems import EXACT, TIDAL, UNSHUFFLED, Form, config
from benchmarks.usage import Usage
from tidal.server.child import RunningServer
from tidal.server.stubs import live_stubs

OWN = (TIDAL, UNSHUFFLED, EXACT)
_SETTLE_S, _PUBLISHED_S = 0.3, 60.0
_SAMPLED_S = 0.25
_MIB = 1 << 20


@dataclass
class Bench:
    """A server over the repository of `write_repository`.

    Attributes:
        server: that runs.
        artefacts: what it serves.
        loaded: settings of the baselines that are loaded, by model.
        generated: tokens that each model has generated.
    """

    server: RunningServer
    artefacts: Artefacts
    loaded: dict[str, Form] = field(default_factory=dict)
    generated: dict[str, int] = field(default_factory=dict)

    def run(self, system: str | Form, load: Load) -> Outcome:
        """Send a load to one of Tidal's models, or to a baseline in some form."""
        model = system if isinstance(system, str) else system.model
        if isinstance(system, Form):
            self.load(system)
        self._sent(model, warm_up(self.server.grpc, model, load))
        calls, usage = self._calls(model), Usage()
        with _sampling(self._process(model)) as sampled, usage.watch(self.server):
            traces = self._sent(model, send(self.server.grpc, model, load))
        watched = Watched(
            calls=round(self._calls(model) - calls),
            peak_mib=sampled.memory / _MIB,
            threads=sampled.threads,
            server=usage.server,
            others=usage.others,
        )
        return outcome_of(traces, watched)

    def tokens(self, model: str, load: Load) -> list[list[int]]:
        """What one of Tidal's models generates."""
        return [trace.tokens for trace in self._sent(model, send(self.server.grpc, model, load))]

    def load(self, form: Form) -> None:
        """Load a baseline in this form, unless it is."""
        if self.loaded.get(form.model) != form:
            self.unload(form.model)
            self.server.control.load(form.model, config(form, self.artefacts))
            self.loaded[form.model] = form

    def unload(self, model: str) -> None:
        """Unload a model, and wait until its process has ended: it is to take neither time nor memory of others."""
        self.loaded.pop(model, None)
        stubs = [stub for stub in live_stubs(self.server.state.server_pid) if stub.model == model]
        if stubs:
            self.server.control.unload(model)
            psutil.wait_procs([psutil.Process(stub.pid) for stub in stubs if psutil.pid_exists(stub.pid)], timeout=30)

    def _process(self, model: str) -> psutil.Process:
        (stub,) = (stub for stub in live_stubs(self.server.state.server_pid) if stub.model == model)
        return psutil.Process(stub.pid)

    def _sent(self, model: str, traces: list[Trace]) -> list[Trace]:
        self.generated[model] = self.generated.get(model, 0) + sum(len(trace.tokens) for trace in traces)
        return traces

    def _calls(self, model: str) -> float:
        """Passes so far of a model that nobody asks; Tidal's publishes them after a while, a busy machine's later."""
        if model not in OWN:
            return series(self.server, "benchmark_engine_calls_total", model) or 0.0
        until = time.monotonic() + _PUBLISHED_S
        while (series(self.server, "tidal_flover_generated_tokens_total", model) or 0) < self.generated[model]:
            if time.monotonic() > until:
                raise RuntimeError(f"{model} does not publish the {self.generated[model]} tokens that it generated")
            time.sleep(_SETTLE_S)
        time.sleep(_SETTLE_S)  # they are not published all at once
        return series(self.server, "tidal_flover_step_seconds_count", model) or 0.0


@dataclass(slots=True)
class _Sampled:
    memory: int = 0
    threads: int = 0

    def take(self, process: psutil.Process) -> None:
        self.memory = max(self.memory, process.memory_info().rss)
        self.threads = max(self.threads, process.num_threads())


@contextmanager
def _sampling(process: psutil.Process) -> Iterator[_Sampled]:
    """Look at a process from time to time while the block runs."""
    sampled, done = _Sampled(), threading.Event()
    sampled.take(process)

    def watch() -> None:
        while not done.wait(_SAMPLED_S):
            sampled.take(process)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield sampled
    finally:
        done.set()
        thread.join()
