"""Clients of two servers, of which one is killed, started again or refuses; the servers are cheap stubs."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from testing.waiting import until
from tests.client.server_pair import ROWS, Calls, Pair, held_by_a, reached
from tests.client.stub_server import STREAMED
from tidal_client import AsyncClient, Client, ConnectionFailed, InvalidArgument, NotFound, Unavailable
from tidal_client.load import RequestVariant, Schedule, prompt_inputs, run_generations, run_load, summarise, text_inputs
from tidal_client.main import build_app
from tidal_client.transports.grpc import GrpcTransport

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("stubs"))
    yield pair
    pair.a.kill()
    pair.b.kill()


@pytest.fixture
def pair(servers: Pair) -> Pair:
    """Both servers are up; what an earlier test has held is gone with its client."""
    servers.a.start()
    servers.b.start()
    # gRPC shares the pause before it connects again among all clients of an address: it lasts beyond a test's kill.
    for url, awaited in product(servers.urls("grpc"), (False, True)):
        assert until(partial(reached, url, awaited=awaited))
    servers.forget()
    return servers


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
