"""Clients of two servers, of which one is killed, started again or refuses; the servers are cheap stubs."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from testing.waiting import until
from tests.client.stub_server import STREAMED
from tidal.server.endpoints import choose_endpoints
from tidal_client import AsyncClient, Client, ConnectionFailed, InvalidArgument, NotFound, Unavailable
from tidal_client.load import RequestVariant, Schedule, prompt_inputs, run_generations, run_load, summarise, text_inputs
from tidal_client.main import build_app
from tidal_client.transports.grpc import GrpcTransport

pytestmark = pytest.mark.slow

ROWS = {"a": 4, "b": 8}


class Server:
    """A stub server that can be killed and started again at its ports."""

    def __init__(self, name: str, log: Path) -> None:
        self.name, self._log = name, log
        ports = choose_endpoints("127.0.0.1", 0, 0, 0)
        self._ports = {"http": ports.http, "grpc": ports.grpc}
        self._process: subprocess.Popen[str] | None = None

    def url(self, protocol: str) -> str:
        return f"{protocol}://127.0.0.1:{self._ports[protocol]}"

    def start(self) -> None:
        if self._process is not None:
            return
        command = [sys.executable, "-m", "tests.client.stub_server", self.name]
        command += [str(self._ports["http"]), str(self._ports["grpc"]), str(ROWS[self.name]), str(self._log)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def kill(self) -> None:
        if self._process is not None:
            with self._process as process:
                process.kill()
            self._process = None


class Pair:
    """Two servers and what they have logged."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "log"
        self.a, self.b = Server("a", self._log), Server("b", self._log)

    def urls(self, protocols: str) -> list[str]:
        first, _, second = protocols.partition("+")
        return [self.a.url(first), self.b.url(second or first)]

    def lines(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []

    def count(self, name: str) -> int:
        """Number of requests of a server."""
        return sum(line.startswith(name) for line in self.lines())

    def has_seen(self, name: str, requests: int) -> bool:
        return self.count(name) >= requests

    def holds(self, line: str) -> bool:
        return until(lambda: line in self.lines())


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("stubs"))
    yield pair
    pair.a.kill()
    pair.b.kill()


def reached(url: str, *, awaited: bool) -> bool:
    try:
        with closing(Calls([url], awaited=awaited)) as calls:
            return bool(calls("ready"))
    except ConnectionFailed:
        return False


@pytest.fixture
def pair(servers: Pair) -> Pair:
    """Both servers are up; what an earlier test has held is gone with its client."""
    servers.a.start()
    servers.b.start()
    # gRPC shares the pause before it connects again among all clients of an address: it lasts beyond a test's kill.
    for url, awaited in product(servers.urls("grpc"), (False, True)):
        assert until(partial(reached, url, awaited=awaited))
    servers._log.write_text("")
    return servers


class Calls:
    """Blocking calls of a client of either kind, from any thread."""

    def __init__(self, urls: list[str], *, awaited: bool, **options: Any) -> None:
        self._client: Any = AsyncClient(urls, **options) if awaited else Client(urls, **options)
        self._loop = asyncio.new_event_loop() if awaited else None
        if self._loop is not None:
            threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def run(self, coroutine: Any) -> Any:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def __call__(self, method: str, *args: Any, **kwargs: Any) -> Any:
        found = getattr(self._client, method)(*args, **kwargs)
        return found if self._loop is None else self.run(found)

    def name(self, text: str = "hi", **kwargs: Any) -> str:
        """The name of the server that answers a text."""
        return str(self("classify", "m", text, **kwargs).label)

    def parts(self, text: str) -> Iterator[str]:
        stream = self._client.generate_stream("m", text)
        if self._loop is None:
            yield from (part.text for part in stream)
            return
        while (part := self.run(anext(stream, None))) is not None:
            yield part.text

    @property
    def outstanding(self) -> tuple[int, ...]:
        found: tuple[int, ...] = self._client._transport._routes._balance.outstanding
        return found

    def close(self) -> None:
        self("close")
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)


@pytest.fixture(params=["sync", "async"])
def awaited(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "async")


@pytest.fixture(params=["grpc", "http"])
def protocols(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def connect(pair: Pair, protocols: str, awaited: bool) -> Iterator[Callable[..., Calls]]:
    opened = list[Calls]()

    def open_calls(**options: Any) -> Calls:
        opened.append(Calls(pair.urls(protocols), awaited=awaited, **options))
        return opened[-1]

    yield open_calls
    for each in opened:
        each.close()


def _done_or_held(future: Future[Any], pair: Pair) -> bool:
    return future.done() or any(line.startswith("a held") for line in pair.lines())


def held_by_a(pool: ThreadPoolExecutor, pair: Pair, ask: Callable[[], Any]) -> Future[Any]:
    """Send calls that only the first server holds until it holds one."""
    while True:
        future = pool.submit(ask)
        assert until(partial(_done_or_held, future, pair))
        if not future.done():
            return future
        assert future.result() in ("b", ["b"] * STREAMED)


def test_lone_calls_alternate(connect: Callable[..., Calls]) -> None:
    calls = connect()
    assert Counter(calls.name() for _ in range(10)) == {"a": 5, "b": 5}
    assert calls.outstanding == (0, 0)


def test_calls_go_to_the_server_with_fewer_outstanding_ones(pair: Pair, connect: Callable[..., Calls]) -> None:
    calls = connect()
    with ThreadPoolExecutor() as pool:
        held = held_by_a(pool, pair, lambda: calls.name("hold a"))
        assert [calls.name() for _ in range(4)] == ["b"] * 4
        assert calls.outstanding == (1, 0)
        pair.a.kill()
        assert held.result() == "b"


def test_no_call_fails_while_one_server_is_away_and_it_is_used_again(pair: Pair, connect: Callable[..., Calls]) -> None:
    calls = connect()
    for _ in range(2):
        pair.a.kill()
        assert [calls.name() for _ in range(10)] == ["b"] * 10
        pair.a.start()
        assert until(lambda: calls.name() == "a")
    assert calls.outstanding == (0, 0)


def test_many_threads_share_a_client_while_a_server_is_killed(pair: Pair, connect: Callable[..., Calls]) -> None:
    calls, answered = connect(), Counter[str]()
    stop = threading.Event()

    def ask() -> Counter[str]:
        names = Counter[str]()
        while not stop.is_set():
            names[calls.name()] += 1
        return names

    with ThreadPoolExecutor(8) as pool:
        try:
            asking = [pool.submit(ask) for _ in range(8)]
            for _ in range(2):
                pair.a.kill()
                assert until(partial(pair.has_seen, "b", pair.count("b") + 50))
                pair.a.start()
                assert until(partial(pair.has_seen, "a", pair.count("a") + 20))
        finally:
            stop.set()
        for each in asking:
            answered += each.result()
    assert answered["a"] >= 40
    assert answered["b"] >= 100
    assert calls.outstanding == (0, 0)


def test_without_any_server_calls_fail_until_one_is_back(pair: Pair, connect: Callable[..., Calls]) -> None:
    calls = connect()
    pair.a.kill()
    pair.b.kill()
    for _ in range(5):
        with pytest.raises(ConnectionFailed, match="no connection to "):
            calls.name()
    with pytest.raises(ConnectionFailed):
        calls("ready")
    with pytest.raises(ConnectionFailed):
        calls("max_rows", "m")
    pair.b.start()

    def answers() -> bool:
        try:
            return calls.name() == "b"
        except ConnectionFailed:
            return False

    assert until(answers)


@pytest.mark.parametrize("command", ["reload", "busy"])
def test_a_refused_call_is_retried_at_the_other_server(pair: Pair, connect: Callable[..., Calls], command: str) -> None:
    calls = connect(retries=1)
    assert [calls.name(f"{command} a") for _ in range(4)] == ["b"] * 4
    assert f"a seen {command} a" in pair.lines()
    assert list(calls.parts(f"{command} b")) == ["a"] * STREAMED
    with pytest.raises(Unavailable):
        calls.name(command)
    assert sum(line.endswith(f"seen {command}") for line in pair.lines()) == 2


def test_a_model_that_one_server_has_not_loaded_is_called_at_the_other(
    pair: Pair, connect: Callable[..., Calls]
) -> None:
    calls = connect()
    assert [calls.name("missing a") for _ in range(4)] == ["b"] * 4
    assert "a seen missing a" in pair.lines()
    assert list(calls.parts("missing b")) == ["a"] * STREAMED
    with pytest.raises(NotFound):
        calls.name("missing")
    assert sum(line.endswith("seen missing") for line in pair.lines()) == 2


def test_without_retries_a_refusal_is_raised(pair: Pair, connect: Callable[..., Calls]) -> None:
    calls = connect()
    refused = 0
    for _ in range(4):
        try:
            assert calls.name("busy a") == "b"
        except Unavailable:
            refused += 1
    assert refused == 2
    assert sum(line.startswith("a") for line in pair.lines()) == 2


def test_streams_that_have_begun_stay(pair: Pair, connect: Callable[..., Calls]) -> None:
    calls = connect()
    while True:
        parts = calls.parts("held-stream a")
        if next(parts) == "a":
            break
        assert list(parts) == ["b"] * (STREAMED - 1)
    assert pair.holds("a held held-stream a")
    streams = pair.lines().count("b seen held-stream a")
    pair.a.kill()
    with pytest.raises(ConnectionFailed):
        list(parts)
    assert pair.lines().count("b seen held-stream a") == streams
    assert calls.outstanding == (0, 0)


def test_streams_that_have_not_begun_and_whole_texts_move(pair: Pair, connect: Callable[..., Calls]) -> None:
    calls = connect()
    with ThreadPoolExecutor() as pool:
        held = held_by_a(pool, pair, lambda: list(calls.parts("hold a")))
        pair.a.kill()
        assert held.result() == ["b"] * STREAMED
    assert calls.outstanding == (0, 0)


def test_facts_of_several_servers(pair: Pair, connect: Callable[..., Calls]) -> None:
    """The smallest number of rows of those that can be reached; ready if one is."""
    calls = connect()
    assert calls("max_rows", "m") == ROWS["a"]
    assert calls("ready")
    assert [calls("ready", model) for model in ("m", "a", "b", "neither")] == [True, True, True, False]
    assert calls("metadata", "m").name == "m"
    pair.a.kill()
    assert calls("metadata", "m").name == "m"
    later = connect()
    assert later("ready", "m")
    assert later("max_rows", "m") == ROWS["b"]
    pair.a.start()
    assert until(lambda: later.name() == "a")
    assert later("max_rows", "m") == ROWS["a"]
    assert {each.label for each in later("classify_many", "m", ["hi"] * 40)} == {"a", "b"}


def test_commands_take_several_urls(pair: Pair, protocols: str) -> None:
    pair.a.kill()
    urls = [argument for url in pair.urls(protocols) for argument in ("--url", url)]

    def run(*arguments: str) -> Any:
        done = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(build_app(), [*arguments, *urls])
        assert done.exit_code == 0, done.output
        return done

    found = run("infer", "m", "-t", "hi", "-t", "there", "--json").stdout.splitlines()
    assert [json.loads(line)["label"] for line in found] == ["b", "b"]


def test_loads_are_distributed(pair: Pair, protocols: str) -> None:
    urls, times = pair.urls(protocols), np.arange(40) / 100
    prompts = Schedule(times, prompt_inputs(text_inputs(["hi"])), [RequestVariant()])
    texts = Schedule(times, text_inputs(["hi"]), [RequestVariant()])
    generated = summarise(run_generations(urls, "m", prompts)).total
    assert (generated.requests, generated.answered) == (40, 40)
    seen = Counter(pair.lines())
    assert min(seen["a seen hi"], seen["b seen hi"]) > 20
    pair._log.write_text("")
    asked = summarise(run_load(urls, "m", texts)).total
    assert (asked.answered, asked.errors) == (40, {})
    seen = Counter(pair.lines())
    assert min(seen["a seen hi"], seen["b seen hi"]) >= 10
    pair.a.kill()
    for summary in (summarise(run_load(urls, "m", texts)), summarise(run_generations(urls, "m", prompts))):
        assert (summary.total.answered, summary.total.errors) == (40, {})


def test_a_retry_of_a_load_goes_to_the_other_server(pair: Pair) -> None:
    plan = Schedule(np.arange(20) / 100, text_inputs(["busy a"]), [RequestVariant()])
    total = summarise(run_load(pair.urls("http"), "m", plan, retries=1)).total
    assert (total.answered, total.errors) == (20, {})
    assert total.resent > 0


@pytest.mark.parametrize("awaited", [False, True])
def test_protocols_may_differ(pair: Pair, awaited: bool) -> None:
    calls = Calls(pair.urls("grpc+http"), awaited=awaited)
    assert Counter(calls.name() for _ in range(6)) == {"a": 3, "b": 3}
    pair.a.kill()
    assert [calls.name() for _ in range(4)] == ["b"] * 4
    calls.close()
    with pytest.raises(InvalidArgument, match="one protocol"):
        run_load(pair.urls("grpc+http"), "m", Schedule(np.zeros(1), text_inputs(["hi"])))


def test_urls_are_checked_and_one_has_the_plain_transport() -> None:
    with pytest.raises(InvalidArgument, match="empty list"):
        Client([])
    with pytest.raises(InvalidArgument, match="'grpc://h:1' is given twice"):
        AsyncClient(["grpc://h:1", "http://h:1", "grpc://h:1"])
    with pytest.raises(InvalidArgument, match="'h:2': expected"):
        Client(["grpc://h:1", "h:2"])
    with Client(["grpc://h:1"], retries=3) as client:
        assert isinstance(client._transport, GrpcTransport)
        assert client._retries == 3


def test_a_closed_client_sends_nothing(pair: Pair, protocols: str) -> None:
    client = Client(pair.urls(protocols))
    assert client.classify("m", "hi").label in ("a", "b")
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.classify("m", "hi")
