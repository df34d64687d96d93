"""Cascades on a real server: routes, options, failures of levels, publication of versions."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest

from testing.cascades import CONFIG, LABELS, LARGE, SMALL, Cascades, RoutedAnswer
from testing.config import parameter
from testing.metrics import published
from testing.servers import RunningServer, running_server
from testing.waiting import until
from tidal.manifest import MANIFEST_FILE
from tidal.repository.entries import ModelEntry
from tidal.server.change import load, unload
from tidal.server.child import tidal_serve
from tidal.server.control import ServerControl
from tidal.tabi.manifest import TabiManifest
from tidal_client import AsyncClient, Client, InvalidArgument, RequestError, Unavailable

pytestmark = pytest.mark.server

# Levels as models of the server instead of in the cascade's process.
APART = CONFIG + parameter("levels", "models")
CONFIGS = {"c": CONFIG, "apart": APART}
LEVELS = {"c": (SMALL, LARGE), "apart": ("apart_small", "apart_large")}
# Pause of a client between requests: a load that leaves processor time to the processes that start under it.
PAUSE_S = 0.05
WORDS = ("please", "book", "cancel", "change", "flight", "hotel", "weather", "music", "song", "actor", "good", "bad")


def make_texts(count: int, seed: int, longest: int = 24) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, longest))) for _ in range(count)]


TEXTS = make_texts(160, seed=1)


@pytest.fixture(scope="module")
def cutoff(cascades: Cascades) -> float:
    return cascades.cutoff(TEXTS[:60])


@pytest.fixture(scope="module")
def manifests() -> dict[str, TabiManifest]:
    return {}


@pytest.fixture(scope="module")
def server(
    cascades: Cascades, cutoff: float, manifests: dict[str, TabiManifest], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """`c`; `apart`, the same with its levels as models, of which `spare` is unloaded for a while; `strict`, which fails
    without that; `pairs`; `urgent`, with a config of one line and a large level too slow for any deadline; `far` and
    `stale`, which cannot be loaded."""
    repository = tmp_path_factory.mktemp("repository")
    cascades.copy_level(repository, SMALL)
    cascades.copy_level(repository, LARGE)
    cascades.copy_level(repository, LARGE, "spare")
    spare = (SMALL, "spare")
    manifests["c"] = cascades.publish(repository, "c", cutoff)
    manifests["apart"] = cascades.publish(repository, "apart", cutoff, models=spare, config=APART)
    strict = parameter("on_level_failure", "error")
    cascades.publish(repository, "strict", cutoff, models=spare, config=APART + strict)
    manifests["pairs"] = cascades.publish(repository, "pairs", cutoff, pairs=True)
    cascades.publish(repository, "urgent", cutoff, means_ms=(1.0, 60_000.0), config='backend: "tabi"\n')
    cascades.publish(repository, "far", cutoff, config=CONFIG + parameter("target_accuracy", 0.99))
    made = cascades.publish(repository, "stale", cutoff)
    changed = made.model_copy(
        update={"levels": (made.levels[0], made.levels[1].model_copy(update={"fingerprint": "other"}))}
    )
    (repository / "stale" / "1" / MANIFEST_FILE).write_text(changed.model_dump_json())
    served = ("c", "apart", "strict", "pairs", "urgent", SMALL, "spare")
    with running_server(repository, models=(*served, "far", "stale")) as running:
        for name in served:
            assert not running.load_error(name)
        yield running


@pytest.fixture(scope="module")
def routed(
    cascades: Cascades, server: RunningServer, manifests: dict[str, TabiManifest]
) -> Callable[..., RoutedAnswer]:
    """The route of a request's row, computed in this process."""
    return lru_cache(None)(
        lambda model, texts, request_id, row: cascades.route_offline(manifests[model], 1, texts, request_id, row)
    )


@pytest.fixture(params=["grpc", "http"])
def url(request: pytest.FixtureRequest, server: RunningServer) -> str:
    return f"{request.param}://{getattr(server, request.param)}"


def column(*texts: str | bytes) -> Any:
    return np.array([[text.encode() if isinstance(text, str) else text] for text in texts], object)


class TestRoutes:
    @pytest.mark.parametrize("model", ["c", "apart"])
    def test_equal_those_computed_offline(self, routed: Callable[..., RoutedAnswer], url: str, model: str) -> None:
        def ask(number: int) -> dict[str, Any]:
            return client.infer(model, {"text_input": column(TEXTS[number])}, request_id=f"q{number}")

        with Client(url) as client, ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(ask, range(len(TEXTS))))
        levels = []
        for number, answer in enumerate(answers):
            wanted = routed(model, (TEXTS[number],), f"q{number}", 0)
            levels.append(wanted.answer.level)
            assert answer["level"].item() == wanted.answer.level
            assert wanted.answer.label is not None
            assert answer["label"].item().decode() == LABELS[wanted.answer.label]
            assert answer["pruned_text"].item().decode() == wanted.read[0]
            np.testing.assert_allclose(answer["probabilities"][0], wanted.answer.outputs, atol=1e-4)
            assert answer["confidence"].item() == pytest.approx(wanted.answer.confidence, abs=1e-4)
            assert not answer["degraded"].item()
        assert 0.2 < levels.count(1) / len(levels) < 0.8
        assert any(answer["pruned_text"].item().decode() != text for answer, text in zip(answers, TEXTS, strict=True))

    def test_rows_have_the_routes_of_their_own_texts(self, routed: Callable[..., RoutedAnswer], url: str) -> None:
        with Client(url) as client:
            found = client.infer("c", {"text_input": column(*TEXTS[:40])})
            alone = [client.infer("c", {"text_input": column(text)})["level"].item() for text in TEXTS[:10]]
            again = [client.infer("c", {"text_input": column(text)})["level"].item() for text in TEXTS[:10]]
        wanted = [routed("c", (text,), "", row).answer for row, text in enumerate(TEXTS[:40])]
        assert found["level"].ravel().tolist() == [answer.level for answer in wanted]
        np.testing.assert_allclose(found["probabilities"], [answer.outputs for answer in wanted], atol=1e-4)
        assert alone == again

    def test_pairs(self, routed: Callable[..., RoutedAnswer], url: str) -> None:
        pairs = list(zip(TEXTS[:40], TEXTS[40:80], strict=True))
        inputs = {"text_input": column(*TEXTS[:40]), "text_pair": column(*TEXTS[40:80])}
        with Client(url) as client:
            found = client.infer("pairs", inputs, request_id="x")
        for row, texts in enumerate(pairs):
            wanted = routed("pairs", texts, "x", row)
            assert found["level"][row, 0] == wanted.answer.level
            read = (found["pruned_text"][row, 0].decode(), found["pruned_pair"][row, 0].decode())
            assert read == wanted.read
            np.testing.assert_allclose(found["probabilities"][row], wanted.answer.outputs, atol=1e-4)

    def test_many_requests_in_flight_over_asyncio(self, server: RunningServer) -> None:
        async def ask() -> list[str | None]:
            async with AsyncClient(f"grpc://{server.grpc}") as client:
                answers = await asyncio.gather(*(client.classify("c", text) for text in TEXTS * 2))
                return [answer.label for answer in answers]

        labels = asyncio.run(ask())
        assert labels[: len(TEXTS)] == labels[len(TEXTS) :]


class TestRequests:
    def test_only_requested_outputs_are_returned(self, url: str) -> None:
        with Client(url) as client:
            assert set(client.infer("c", {"text_input": column("good")}, outputs=["level"])) == {"level"}
            answer = client.classify("c", "good")
            assert answer.probabilities is not None
            assert answer.label == LABELS[int(answer.probabilities.argmax())]
            assert set(answer.other) == {"level", "confidence", "degraded", "input_tokens", "pruned_text"}

    def test_a_config_of_one_line_serves(self, url: str) -> None:
        with Client(url) as client:
            for text in TEXTS[:5]:
                one, other = (client.classify(model, text, request_id="r") for model in ("urgent", "c"))
                assert (one.label, one.other["level"]) == (other.label, other.other["level"])

    def test_options(self, url: str) -> None:
        with Client(url) as client:

            def levels(**options: Any) -> set[int]:
                found = client.infer("c", {"text_input": column(*TEXTS[:40])}, **options)
                return set(found["level"].ravel().tolist())

            assert levels() == {1, 2}
            assert levels(max_level=1) == levels(accuracy=0.5) == {1}
            assert levels(accuracy=0.96) == levels(accuracy=1.0) == {2}
            with pytest.raises(InvalidArgument, match="'max_level'"):
                levels(max_level=0)
            with pytest.raises(InvalidArgument, match="'accuracy'"):
                levels(accuracy=1.5)

    @pytest.mark.parametrize(
        ("model", "inputs", "message"),
        [
            ("c", {"text_input": column("good"), "text_pair": column("bad")}, "text_pair"),
            ("pairs", {"text_input": column("good")}, "text_pair"),
            ("c", {"text_input": column("good", "")}, "text_input row 1 is empty"),
            ("c", {"text_input": column(b"\xff")}, "text_input row 0 is not valid UTF-8"),
            ("c", {"text_input": column("good " * 80)}, "text_input row 0 has 82 tokens; this model reads at most 64"),
        ],
    )
    def test_errors_name_the_invalid_input(self, model: str, inputs: Any, message: str, url: str) -> None:
        with Client(url) as client, pytest.raises(InvalidArgument, match=message):
            client.infer(model, inputs)

    def test_an_escalation_that_would_miss_the_deadline_is_skipped(self, url: str) -> None:
        inputs = {"text_input": column(*TEXTS[:40])}
        with Client(url) as client:
            urgent = client.infer("urgent", inputs, latency_ms=20_000)
            unlimited = client.infer("urgent", inputs)
        assert set(urgent["level"].ravel().tolist()) == {1}
        assert urgent["degraded"].ravel().tolist() == (unlimited["level"].ravel() == 2).tolist()
        assert not unlimited["degraded"].any()

    def test_metrics_count_queries_and_words(self, server: RunningServer, url: str) -> None:
        with Client(url) as client:
            client.infer("c", {"text_input": column(*TEXTS[:40])})

        def value(family: str, **labels: str) -> float:
            return published(server.metrics_text(), f"tidal_tabi_{family}", model="c", **labels)

        assert until(lambda: value("answered_queries_total", level="2") > 0)
        assert until(lambda: value("level_queries_total", level="1") >= 40)
        assert until(lambda: value("early_returned_queries_total") > 0)
        assert until(lambda: value("seen_words_total") > value("pruned_words_total") > 0)
        assert until(lambda: value("confidence_count", level="1") >= 40)
        assert until(lambda: value("level_seconds_count", level="2") > 0)
        assert until(lambda: value("runtime_execute_seconds_count", level="2") > 0)
        assert until(lambda: value("active_candidate", candidate="both") == 1)
        assert value("degraded_queries_total") == 0


def test_load_errors_name_an_unreachable_target_and_a_changed_level(server: RunningServer) -> None:
    assert "no candidate reaches the accuracy 0.99" in server.load_error("far")
    assert "is not the one that the cascade 'stale' was built with" in server.load_error("stale")


def test_a_level_that_is_not_loaded(server: RunningServer) -> None:
    inputs = {"text_input": column(*TEXTS[:40])}
    with Client(f"grpc://{server.grpc}") as client:
        whole = client.infer("apart", inputs)
        assert not whole["degraded"].any()
        server.control.unload("spare")
        assert until(lambda: bool(server.load_error("spare")))
        degraded = client.infer("apart", inputs)
        assert set(degraded["level"].ravel().tolist()) == {1}
        assert degraded["degraded"].ravel().tolist() == (whole["level"].ravel() == 2).tolist()
        with pytest.raises(Unavailable, match="level 2, model 'spare'"):
            client.infer("strict", inputs)
        sure = next(text for text, level in zip(TEXTS, whole["level"].ravel(), strict=False) if level == 1)
        assert client.infer("strict", {"text_input": column(sure)}, max_level=1)["level"].item() == 1
        server.control.load("spare", None)
        for model in ("apart", "strict"):
            assert client.infer(model, inputs)["level"].tolist() == whole["level"].tolist()


def test_a_level_whose_process_is_killed_with_queries_in_it(cascades: Cascades, cutoff: float, tmp_path: Path) -> None:
    for level in (SMALL, LARGE):
        cascades.copy_level(tmp_path, level)
    cascades.publish(tmp_path, "c", cutoff, config=APART + parameter("level_timeout_ms", 1500))
    with running_server(tmp_path, exit_timeout_s=3) as server, Client(f"grpc://{server.grpc}") as client:
        over = threading.Event()
        answers: list[bool] = []

        def ask() -> None:
            while not over.is_set():
                answers.extend(client.infer("c", {"text_input": column(*TEXTS[:40])})["degraded"].ravel().tolist())

        with ThreadPoolExecutor(6) as pool:
            asking = [pool.submit(ask) for _ in range(6)]
            try:
                assert until(lambda: len(answers) > 400)
                os.kill(server.stub_pids(LARGE)[0], signal.SIGKILL)
                before = len(answers)
                degraded = until(lambda: sum(answers[before:]) > 100)
            finally:
                over.set()
            if not psutil.pid_exists(server.pid):
                pytest.skip("tritonserver aborted: the kill came while the stub held a lock that it shares with it")
            assert degraded
            for each in asking:
                each.result(timeout=60)  # every request got an answer
        server.control.unload(LARGE)
        server.control.load(LARGE, None)
        assert until(lambda: not client.infer("c", {"text_input": column(*TEXTS[:40])})["degraded"].any())


class Served(NamedTuple):
    """A running `tidal serve`, its repository and the URL of its gRPC endpoint."""

    control: ServerControl
    repository: Path
    grpc: str


@pytest.fixture(scope="module")
def served(cascades: Cascades, cutoff: float, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`tidal serve` with the cascade `c`, in a repository that also contains `apart` and an unrelated model.

    Each cascade has levels of its own: an unload keeps levels that another cascade in the repository requires.
    """
    repository = tmp_path_factory.mktemp("served")
    cascades.copy_level(repository, LARGE, "other")
    for name, config in CONFIGS.items():
        for source, level in zip((SMALL, LARGE), LEVELS[name], strict=True):
            cascades.copy_level(repository, source, level)
        cascades.publish(repository, name, cutoff, models=LEVELS[name], config=config)
    with tidal_serve(repository, "--model", "c") as server:
        yield Served(server.control, repository, server.grpc)


class TestUnderTidalServe:
    def test_a_cascade_is_loaded_and_unloaded_with_its_levels(self, served: Served) -> None:
        control, repository = served.control, served.repository

        def ready() -> set[str]:
            return {row.name for row in control.index() if row.state == "READY"}

        def become_ready(models: set[str]) -> bool:
            """Wait until exactly these models are ready."""
            return until(lambda: ready() == models)

        with Client(served.grpc) as client:
            loaded = set[str]()
            for name, levels in (("c", ()), ("apart", LEVELS["apart"])):
                load(control, repository, name)
                assert ready() == {*loaded, name, *levels}
                assert client.infer(name, {"text_input": column("good")})["level"].item() in (1, 2)
                assert unload(control, repository, name).startswith(f"{name}: unloaded")
                assert become_ready(loaded)
                assert "version 1 serves now" in load(control, repository, name)
                loaded = {*loaded, name, *levels}
                assert ready() == loaded
                assert not client.infer(name, {"text_input": column(*TEXTS[:40])})["degraded"].any()

    def test_no_request_fails_while_cascades_are_published(
        self, cutoff: float, cascades: Cascades, served: Served
    ) -> None:
        repository = served.repository
        over, failures = threading.Event(), list[str]()
        degraded: dict[str, list[bool]] = {name: [] for name in CONFIGS}
        for name in CONFIGS:
            load(served.control, repository, name)
        with Client(served.grpc) as client, ThreadPoolExecutor(4) as pool:

            def ask(name: str) -> None:
                while not over.wait(PAUSE_S):
                    try:
                        found = client.infer(name, {"text_input": column(*TEXTS[:8])})
                        degraded[name].extend(found["degraded"].ravel().tolist())
                    except RequestError as error:
                        failures.append(f"{name}: {type(error).__name__}: {error}")

            def answered(more: int) -> bool:
                """Wait until `more` further queries of each cascade are answered."""
                goals = {name: len(each) + more for name, each in degraded.items()}
                return until(lambda: all(len(degraded[name]) >= goal for name, goal in goals.items()))

            asking = [pool.submit(ask, name) for name in CONFIGS for _ in range(2)]
            try:
                assert answered(100)
                for version in (2, 3):
                    for level in itertools.chain(*LEVELS.values()):
                        entry = ModelEntry(repository / level)
                        staging = entry.new_staging()
                        shutil.copytree(entry.version_dir(1), staging, dirs_exist_ok=True)
                        entry.publish(staging)
                    for name in CONFIGS:
                        aside = repository.parent / "aside" / str(version)
                        cascades.publish(
                            aside, name, cutoff, version=version, models=LEVELS[name], versions=(version, version)
                        )
                        (aside / name / str(version)).rename(repository / name / str(version))
                        load(served.control, repository, name)
                    assert answered(100)
            finally:
                over.set()
            for each in asking:
                each.result(timeout=60)
            assert failures == []
            assert not any(any(each) for each in degraded.values())
            serving = {(row.name, row.version) for row in served.control.index() if row.state == "READY"}
            assert {("c", 3), ("apart", 3)} <= serving
            assert {version for name, version in serving if name == LEVELS["apart"][1]} == {2, 3}
