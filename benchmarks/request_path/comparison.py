"""A model of the `arlo` backend against the fastest bare model around the same engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import progress
from benchmarks.request_path.bare import BareConfig, SearchSpace, floors, search
from benchmarks.request_path.load import Requests
from benchmarks.request_path.measure import RequestPathCell
from benchmarks.request_path.rounds import Bench, Side
from benchmarks.request_path.systems import MakeRequests
from tidal.repository.entries import ModelEntry
from tidal.server.child import RunningServer

TIDAL, BARE = "tidal", "bare"
# Measurements of all sides by number of requests in flight.
Cells = dict[int, dict[str, list[RequestPathCell]]]


@dataclass(frozen=True, slots=True)
class BareComparison:
    """Measurements of both sides.

    Attributes:
        engine: Name of Tidal's model.
        best: Fastest bare configuration by number of requests in flight.
        cells: Measurements by number of requests in flight and side.
        lone: Measurements of texts of 25 tokens, one in flight; empty where none were made.
    """

    engine: str
    best: Mapping[int, BareConfig]
    cells: Cells
    lone: Mapping[str, list[RequestPathCell]]


@dataclass
class BareBench:
    """Compares models of one repository with bare ones.

    Attributes:
        bench: Benchmark that sends the load.
        server: Server of the repository.
        repository: Model repository.
    """

    bench: Bench
    server: RunningServer
    repository: Path

    def compare(
        self,
        engine: str,
        make: MakeRequests,
        concurrencies: Sequence[int],
        *,
        space: SearchSpace,
        with_floors: Sequence[int] = (),
        lone: MakeRequests | None = None,
    ) -> BareComparison:
        """Search the best bare model, then measure both in alternation.

        Args:
            engine: Name of Tidal's model.
            make: Makes its requests.
            concurrencies: Numbers of requests in flight.
            space: Parameters of bare models to try.
            with_floors: Those of them at which bare models that send their answers are measured too.
            lone: Makes requests for a comparison with one in flight; None: no such comparison.
        """
        with self._loaded(engine), self._bare_models(engine) as load:

            def speed(candidate: BareConfig, concurrency: int) -> float:
                load(candidate)
                return self.bench.speed(self._side(make, candidate), candidate, concurrency)

            progress(f"{engine}: parameter search of the bare model")
            best = search(engine, concurrencies, speed, space)
            cells: Cells = {}
            for concurrency in concurrencies:
                progress(f"{engine}: {concurrency} in flight against {best[concurrency].settings}")
                sides = {TIDAL: Side(self.server, make), BARE: self._side(make, best[concurrency])}
                if concurrency in with_floors:
                    for floor in floors(best[concurrency]):
                        load(floor)
                        sides[f"{BARE}, {floor.answers}"] = self._side(make, floor)
                cells[concurrency] = self.bench.alternate(sides, concurrency)
            alone = {}
            if lone is not None:
                progress(f"{engine}: a lone query")
                alone = self.bench.alternate({TIDAL: Side(self.server, lone), BARE: self._side(lone, best[1])}, 1)
            return BareComparison(engine, best, cells, alone)

    def _side(self, make: MakeRequests, candidate: BareConfig) -> Side:
        def renamed(seed: int) -> Requests:
            return Requests(candidate.model, make(seed).rows)

        return Side(self.server, renamed)

    @contextmanager
    def _loaded(self, model: str) -> Iterator[None]:
        self.server.control.load(model, None)
        yield
        self.server.control.unload(model)

    @contextmanager
    def _bare_models(self, engine: str) -> Iterator[_Load]:
        version_dir = ModelEntry(self.repository / engine).latest()
        assert version_dir is not None
        load = _Load(self.server, self.repository, version_dir, set())
        yield load
        for model in load.models:
            self.server.control.unload(model)


@dataclass(frozen=True, slots=True)
class _Load:
    """Writes and loads bare models once."""

    server: RunningServer
    repository: Path
    version_dir: Path
    models: set[str]

    def __call__(self, candidate: BareConfig) -> None:
        if candidate.model not in self.models:
            candidate.write(self.repository, self.version_dir)
            self.server.control.load(candidate.model, None)
            self.models.add(candidate.model)
