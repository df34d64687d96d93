"""Clients of a `tidal serve`: discovery, errors while a model or the server restarts, and retries."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException
from typer.testing import CliRunner

from testing.decoders import built_decoder
from testing.serving import Served, serving
from testing.waiting import until
from tests.client.conftest import write_probe
from tidal_client import AsyncClient, Client, InvalidArgument, RequestError, Unavailable, retrying
from tidal_client.load import RequestVariant, Schedule, prompt_inputs, run_generations, run_load, summarise, text_inputs
from tidal_client.main import build_app
from tidal_client.retrying import RETRYABLE

pytestmark = pytest.mark.server

PROTOCOLS = ("grpc", "http")
GENEROUS_S = 120.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`tidal serve`, which restarts crashed processes, with the models `probe` and `writer`."""
    folder = tmp_path_factory.mktemp("restarts")
    shutil.copytree(built_decoder(tmp_path_factory), folder / "repository")
    write_probe(folder / "repository", folder / "probe.log")
    with serving(folder / "repository", folder) as running:
        yield running


@pytest.fixture
def frequent_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients retry at least twice per second, so that they soon notice that a model serves again."""
    monkeypatch.setattr(retrying, "_LONGEST_PAUSE_S", 0.5)


def url_of(served: Served, protocol: str) -> str:
    return f"{protocol}://{served.report[protocol]}"


def kill_stubs(served: Served, *models: str) -> None:
    """Kill all stubs of some models, also those left by an earlier restart, once all are ready."""
    with Client(url_of(served, "http")) as client:
        for model in models:
            assert until(lambda model=model: client.ready(model) and bool(served.stubs(model)))
    for stub in [stub for model in models for stub in served.stubs(model)]:
        with contextlib.suppress(psutil.Error):
            stub.kill()


def until_answered(ask: Callable[[], object]) -> list[RequestError]:
    """Return the errors of the calls before the first one that is answered."""
    errors, end = list[RequestError](), time.monotonic() + GENEROUS_S
    while time.monotonic() < end:
        try:
            ask()
            return errors
        except RequestError as error:
            errors.append(error)
            time.sleep(0.02)
    raise AssertionError(f"no answer again; last {errors[-1:]}")


def kinds(errors: list[RequestError]) -> set[type[RequestError]]:
    return {type(error) for error in errors}


def test_errors_of_a_crashed_model(served: Served) -> None:
    """Tidal's clients raise retryable errors; tritonclient raises the documented ones."""
    text = tritonclient.grpc.InferInput("text_input", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([[b"hi"]], object))

    def plain() -> set[tuple[str, str]]:
        seen, end = set[tuple[str, str]](), time.monotonic() + GENEROUS_S
        with tritonclient.grpc.InferenceServerClient(served.report["grpc"]) as client:
            while time.monotonic() < end:
                try:
                    client.infer("probe", [text], client_timeout=30)
                    return seen
                except InferenceServerException as error:
                    seen.add((str(error.status()), str(error.message())))
                    time.sleep(0.02)
        raise AssertionError(f"no answer again; seen {seen}")

    def ours(protocol: str) -> list[RequestError]:
        with Client(url_of(served, protocol)) as client:
            return until_answered(lambda: client.classify("probe", "hi"))

    kill_stubs(served, "probe")
    with ThreadPoolExecutor() as pool:
        asked, seen = [pool.submit(ours, protocol) for protocol in PROTOCOLS], pool.submit(plain)
        errors = [error for each in asked for error in each.result()]
    assert kinds(errors) <= set(RETRYABLE), errors
    assert kinds(errors) & {Unavailable}
    assert seen.result() <= {
        ("StatusCode.INTERNAL", "Stub process 'probe_0_0' is not healthy."),
        ("StatusCode.NOT_FOUND", "Request for unknown model: 'probe' has no available versions"),
    }
    assert len(seen.result()) > 0
    documented = Path(__file__).parents[2].joinpath("docs/how-to/handle-errors.md").read_text()
    for _, message in seen.result():
        assert message.replace("probe_0_0", "…").replace("probe", "…") in documented


@pytest.mark.usefixtures("frequent_retries")
def test_retries_outlast_a_crashed_model(served: Served) -> None:
    patient: Any = {"timeout_s": GENEROUS_S, "retries": 1000}

    async def awaited(protocol: str) -> Any:
        async with AsyncClient(url_of(served, protocol), **patient) as client:
            classified, generated = await asyncio.gather(
                client.classify("probe", "hi"), client.generate("writer", "hi", max_tokens=3)
            )
            return classified.label, generated.tokens

    async def streamed(protocol: str) -> Any:
        async with AsyncClient(url_of(served, protocol), **patient) as client:
            return "short", tuple(
                [token async for part in client.generate_stream("writer", "hi", max_tokens=3) for token in part.tokens]
            )

    def blocking(protocol: str) -> Any:
        with Client(url_of(served, protocol), **patient) as client:
            parts = client.generate_stream("writer", "hi", max_tokens=3)
            tokens = tuple(token for part in parts for token in part.tokens)
            assert client.metadata("probe").name == "probe"
            assert client.generate("writer", "hi", max_tokens=3).tokens == tokens
            return client.classify("probe", "hi").label, tokens

    kill_stubs(served, "probe", "writer")
    with ThreadPoolExecutor() as pool:
        calls = [pool.submit(blocking, protocol) for protocol in PROTOCOLS]
        calls += [pool.submit(asyncio.run, call(protocol)) for call in (awaited, streamed) for protocol in PROTOCOLS]
        found = {call.result() for call in calls}
    assert len(found) == 1
    ((label, tokens),) = found
    assert label == "short"
    assert len(tokens) == 3


def run(*arguments: str) -> Any:
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(build_app(), [*arguments])


def test_commands_find_the_running_server(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(served.runtime))
    for arguments in (
        ("infer", "probe", "--text", "hi"),
        ("generate", "writer", "--text", "hi", "-n", "2"),
        ("load", "probe", "-r", "50", "-n", "5"),
    ):
        done = run(*arguments)
        assert done.exit_code == 0, done.output


@pytest.mark.usefixtures("frequent_retries")
def test_load_with_retries_outlasts_crashed_models(served: Served) -> None:
    times, texts = np.arange(40) / 20, text_inputs(["hi"])
    patient: Any = {"timeout_s": GENEROUS_S, "retries": 1000}
    mix = (RequestVariant(), RequestVariant(parameters={"latency_ms": 1000 * GENEROUS_S}))
    asked, prompts = (
        Schedule(times, texts, mix),
        Schedule(times, prompt_inputs(texts), [RequestVariant(1, {"max_tokens": 2})]),
    )
    kill_stubs(served, "probe", "writer")
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(run_load, url_of(served, each), "probe", asked, **patient) for each in PROTOCOLS]
        runs += [pool.submit(run_generations, url_of(served, each), "writer", prompts, **patient) for each in PROTOCOLS]
        for each in runs:
            total = summarise(each.result()).total
            assert (total.requests, total.answered, total.errors) == (40, 40, {})
            assert total.resent > 0


def test_the_command_waits_for_a_crashed_model(served: Served) -> None:
    kill_stubs(served, "probe")
    load = ("load", "probe", "--url", url_of(served, "http"), "-r", "20", "-n", "10", "--late-ms", "60000")
    done = run(*load, "--retry", "--timeout", "120", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["total"]["answered"] == 10


def test_a_lost_connection_is_reported_and_restored(served: Served) -> None:
    """The last test of this module: calls during a restart of the server fail, later ones are answered."""
    urls = [url_of(served, protocol) for protocol in PROTOCOLS]
    clients = [Client(url) for url in urls]

    def awaited(url: str) -> list[RequestError]:
        async def ask() -> list[RequestError]:
            async with AsyncClient(url) as client:
                errors, end = list[RequestError](), time.monotonic() + GENEROUS_S
                await client.generate("writer", "hi", max_tokens=1)
                ready.append(url)
                while time.monotonic() < end:
                    try:
                        await client.generate("writer", "hi", max_tokens=1)
                        if errors:
                            return errors
                    except RequestError as error:
                        errors.append(error)
                    await asyncio.sleep(0.02)
                raise AssertionError(f"no answer again; last {errors[-1:]}")

        return asyncio.run(ask())

    ready = list[str]()
    for client in clients:
        client.generate("writer", "hi", max_tokens=1)
    with ThreadPoolExecutor() as pool:
        others = [pool.submit(awaited, url) for url in urls]
        while len(ready) < len(urls):
            time.sleep(0.02)
        psutil.Process(served.state["server_pid"]).kill()
        asked = [
            pool.submit(until_answered, lambda client=client: client.generate("writer", "hi", max_tokens=1))
            for client in clients
        ]
        for future in (*asked, *others):
            errors = future.result()
            assert kinds(errors) <= set(RETRYABLE), errors
            assert "CONNECTION_FAILED" in {error.code for error in errors}
    for client in clients:
        client.close()


def test_invalid_numbers_of_retries() -> None:
    for wrong in (-1, 1.5, True, "3", None):
        with pytest.raises(InvalidArgument, match="retries: expected a whole number of at least 0"):
            Client("grpc://h:1", retries=wrong)  # type: ignore[arg-type]
