"""The request path's benchmark against a real server, with its smallest settings."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.kept import cache_folder
from benchmarks.report import Report
from benchmarks.request_path import stub_calls, systems
from benchmarks.request_path.bare import BareConfig, SearchSpace, floors
from benchmarks.request_path.client_load import ClientLoad
from benchmarks.request_path.comparison import BARE, TIDAL, BareBench
from benchmarks.request_path.load import Generator, LoadFailed, PerfAnalyzerLoad, Requests
from benchmarks.request_path.rounds import Bench
from testing.classifiers import build_classifier
from testing.models import make_tiny_classifier
from testing.once import built_once
from testing.perf_analyzer import NoPerfAnalyzer, fetch
from tidal.server.child import RunningServer, tidal_serve
from tidal_client import Client

pytestmark = pytest.mark.server

MODEL = "tiny_arlo"
SPACE = SearchSpace([(1, 1)], (8,))


def build(folder: Path) -> None:
    source = make_tiny_classifier(folder / "source", layers=1, hidden=32, max_position=64)
    build_classifier(folder / "repository", source, name=MODEL, lengths=[64], max_batch=8, threads=1)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository that the tests add bare models to."""
    built = built_once(tmp_path_factory, "request_path", build)
    folder = tmp_path_factory.mktemp("request_path") / "repository"
    shutil.copytree(built / "repository", folder)
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[RunningServer]:
    with tidal_serve(repository, "--exit-timeout", "3", "--model", MODEL) as running:
        yield running


@pytest.fixture
def generator() -> Generator:
    try:
        return PerfAnalyzerLoad(fetch(cache_folder()))
    except NoPerfAnalyzer:
        return ClientLoad()


def test_bare_models_answer_as_tidal_does(server: RunningServer, repository: Path) -> None:
    first = BareConfig(MODEL, 1, 1, 8)
    inputs = {"text_input": np.array([[b"book a flight"], [b"play some very good music today"]], object)}
    names = ["logits", "probabilities", "label", "max_length", "input_tokens"]
    with Client(server.grpc) as client:
        expected = client.infer(MODEL, inputs, outputs=names)
        for config in (first, *floors(first)):
            config.write(repository, repository / MODEL / "1")
            server.control.load(config.model, None)
            found = client.infer(config.model, inputs)
            server.control.unload(config.model)
            assert found.keys() == expected.keys() == set(names)
            for name in ("logits", "probabilities"):
                np.testing.assert_allclose(found[name], expected[name], atol=1e-4)
            assert found["label"].tolist() == expected["label"].tolist()
            for name in ("max_length", "input_tokens"):
                assert found[name].tolist() == expected[name].tolist()


def test_both_sides_are_measured(server: RunningServer, repository: Path, generator: Generator) -> None:
    tokenizer = next((repository / MODEL).rglob("tokenizer.json"))
    bench = Bench(generator, seconds=0.5, rounds=1)
    make = systems.texts(MODEL, tokenizer, systems.short)
    found = BareBench(bench, server, repository).compare(MODEL, make, (1, 8), space=SPACE, with_floors=(8,), lone=make)
    assert {at: config.max_batch for at, config in found.best.items()} == {1: 1, 8: 8}
    assert list(found.cells[8]) == [TIDAL, BARE, f"{BARE}, senders", f"{BARE}, thread"]
    assert found.lone.keys() == {TIDAL, BARE}
    for cells in (*found.cells[1].values(), *found.cells[8].values()):
        (cell,) = cells
        assert cell.per_second > 10
        assert 0 < cell.p50_ms <= cell.p99_ms
        assert all(spent > 0 for spent in cell.cpu_ms.values())
        assert 0 < cell.utilisation <= 1.05
        assert cell.mean_batch >= 1
    assert found.cells[8][BARE][0].mean_batch > 1
    assert len(bench.searched) == 2
    loaded = [row.name for row in server.control.index() if row.state == "READY"]
    assert not [name for name in loaded if name.startswith(BARE)]


def test_calls_of_the_stub_are_timed(server: RunningServer, repository: Path, generator: Generator) -> None:
    report = Report("request_path", quick=True)
    stub_calls.add(report, Bench(generator, seconds=0.5, rounds=1), server, repository, (1,))
    listed, sent = (report.measured["stub_calls_us"][answers]["1"] for answers in ("list", "senders"))
    assert len(listed) == len(sent) == len(stub_calls.CALLS)
    assert all(each > 0 for each in (*listed[:-2], *sent))
    assert listed[-2:] == [0, 0]  # it sends no answer


def test_failed_requests_end_a_measurement(server: RunningServer, generator: Generator) -> None:
    server.control.load(MODEL, None)
    too_long = Requests(MODEL, [{"text_input": ["book " * 100]}])
    for each in (generator, ClientLoad()):
        with pytest.raises(LoadFailed):
            each.run(server.state.grpc, too_long, concurrency=2, seconds=0.3)


def test_the_client_generates_load(server: RunningServer) -> None:
    server.control.load(MODEL, None)
    texts = Requests(MODEL, [{"text_input": [f"book flight {number}"]} for number in range(500)])
    found = ClientLoad().run(server.state.grpc, texts, concurrency=4, seconds=0.5)
    assert found.per_second > 10
    assert 0 < found.p50_ms <= found.p99_ms
