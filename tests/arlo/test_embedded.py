"""An `arlo` model embedded in the process of another model."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.requests import make_context
from tests.arlo.conftest import Built
from tidal.arlo.embedded import EmbeddedModels, LoadedModel, LocalService, load_embedded
from tidal.arlo.model import EncoderModel, TokenRow, open_model
from tidal.arlo.policies import ArloBatch, PolymorphicPolicy
from tidal.errors import Internal, InvalidArgument, NotFound, Unavailable
from tidal.metrics import Metrics
from tidal.requests import Array, PendingRequest
from tidal.service import ServiceContext

LOG = logging.getLogger("test")


def elsewhere(
    model: str,
    inputs: Mapping[str, Array],
    outputs: Sequence[str],
    *,
    version: int,
    latency_ms: float | None = None,
    task: str | None = None,
) -> dict[str, Array]:
    raise NotFound(f"{model} {version} was asked of the server")


def outer_context(failures: list[BaseException]) -> ServiceContext:
    outputs = frozenset({"label"})
    return make_context(
        Path("outer"), Metrics("tabi"), model="outer", outputs=outputs, call_model=elsewhere, failures=failures
    )


@pytest.fixture(scope="module")
def loaded(built: Built) -> LoadedModel:
    return load_embedded(built.repository / "tiny" / "1", "tiny", LOG)


@pytest.fixture
def failures() -> list[BaseException]:
    return []


@pytest.fixture
def models(loaded: LoadedModel, failures: list[BaseException]) -> Iterator[EmbeddedModels]:
    context = outer_context(failures)
    found = EmbeddedModels(context, [loaded], {"tiny": context.metrics.within("runtime", level="1")})
    yield found
    found.close(5)


def tokens(length: int, seed: int = 0) -> dict[str, Array]:
    ids = np.random.default_rng(seed).integers(5, 60, (1, length))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


def test_outputs_equal_those_of_its_engines(models: EmbeddedModels, built: Built) -> None:
    model = open_model(built.repository / "tiny" / "1")

    def ask(number: int) -> None:
        inputs = tokens(3 + number % 50, number)
        found = models("tiny", inputs, ["logits", "attention_received"], version=1, latency_ms=60_000)
        row = TokenRow(inputs["input_ids"][0], inputs["attention_mask"][0], inputs["token_type_ids"][0])
        runtime = next(i for i, each in enumerate(model.manifest.runtimes) if each.max_length >= len(row.ids))
        wanted = model.run(0, runtime, [row])
        assert set(found) == {"logits", "attention_received"}
        np.testing.assert_allclose(found["logits"], wanted["logits"], atol=1e-4)
        received = wanted["attention_received"][:, : len(row.ids)]
        np.testing.assert_allclose(found["attention_received"], received, atol=1e-3)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(60)))


def test_metrics_are_those_of_the_outer_model(loaded: LoadedModel) -> None:
    context = outer_context([])
    models = EmbeddedModels(context, [loaded], {"tiny": context.metrics.within("runtime", level="2")})
    models("tiny", tokens(4), ["logits"], version=1)
    models.close(5)
    found = {(each.family, each.labels): each.value for each in context.metrics.samples()}
    assert found["tidal_tabi_runtime_executed_queries_total", (("level", "2"), ("runtime", "16"))] == 1


def test_other_models_and_versions_are_called_on_the_server(models: EmbeddedModels) -> None:
    for model, version in (("other", 1), ("tiny", 2)):
        with pytest.raises(NotFound, match=f"{model} {version} was asked of the server"):
            models(model, tokens(4), ["logits"], version=version)


def test_an_invalid_query_is_refused(models: EmbeddedModels) -> None:
    with pytest.raises(InvalidArgument, match="input_ids row 0 has 65 tokens"):
        models("tiny", tokens(65), ["logits"], version=1)


def test_a_query_that_would_miss_its_deadline_is_refused(models: EmbeddedModels) -> None:
    with pytest.raises(Unavailable, match="deadline"):
        models("tiny", tokens(64), ["logits"], version=1, latency_ms=1e-3)


def test_a_missing_version_does_not_load(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument):
        load_embedded(tmp_path / "1", "tiny", LOG)


class TestThreads:
    @pytest.fixture
    def threads(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Names of the threads that run batches."""
        names: list[str] = []
        run = EncoderModel.run

        def counting_run(self: EncoderModel, *args: Any, **more: Any) -> dict[str, Array]:
            names.append(threading.current_thread().name)
            return run(self, *args, **more)

        monkeypatch.setattr(EncoderModel, "run", counting_run)
        return names

    def test_a_single_call_runs_in_the_calling_thread(self, models: EmbeddedModels, threads: list[str]) -> None:
        models("tiny", tokens(4), ["logits"], version=1)
        assert threads == [threading.current_thread().name]

    def test_concurrent_calls_are_all_answered(self, models: EmbeddedModels, threads: list[str]) -> None:
        def ask(seed: int) -> np.ndarray[Any, Any]:
            return models("tiny", tokens(4 + seed % 20, seed), ["logits"], version=1)["logits"]

        alone = [ask(seed) for seed in range(64)]
        threads.clear()
        with ThreadPoolExecutor(32) as pool:
            together = list(pool.map(ask, range(64)))
        np.testing.assert_allclose(np.concatenate(together), np.concatenate(alone), atol=1e-4)

    def test_a_failed_policy_ends_the_service(
        self, models: EmbeddedModels, failures: list[BaseException], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        caller, next_batch = threading.current_thread(), PolymorphicPolicy.next_batch

        def broken(self: PolymorphicPolicy, now: float) -> ArloBatch | None:
            if threading.current_thread() is caller:
                raise ValueError("broken")
            return next_batch(self, now)

        monkeypatch.setattr(PolymorphicPolicy, "next_batch", broken)
        with pytest.raises(ValueError, match="broken"):
            models("tiny", tokens(4), ["logits"], version=1)
        assert [str(failure) for failure in failures] == ["broken"]
        with pytest.raises(Unavailable, match="stops serving"):
            models("tiny", tokens(4), ["logits"], version=1)


class Stuck:
    """A service that does not answer."""

    def __init__(self, context: ServiceContext) -> None:
        self.context = context
        self.asked = threading.Event()

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        raise AssertionError("a call must run in the calling thread")

    def run_here(self, request: PendingRequest) -> None:
        self.asked.set()

    def close(self, timeout_s: float) -> None:
        pass


class TestStuckService:
    @pytest.fixture
    def stuck(self, loaded: LoadedModel, failures: list[BaseException]) -> tuple[Stuck, EmbeddedModels]:
        made: list[Stuck] = []

        def start(context: ServiceContext) -> LocalService:
            made.append(Stuck(context))
            return made[0]

        model = dataclasses.replace(loaded, start=start)
        context = outer_context(failures)
        models = EmbeddedModels(context, [model], {"tiny": context.metrics})
        return made[0], models

    def test_its_failure_ends_the_calls_and_fails_the_outer_model(
        self, stuck: tuple[Stuck, EmbeddedModels], failures: list[BaseException]
    ) -> None:
        service, models = stuck
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(models, "tiny", tokens(4), ["logits"], version=1)
            assert service.asked.wait(10)
            error = RuntimeError("broken")
            service.context.failed(error)
            with pytest.raises(Internal, match="RuntimeError: broken"):
                call.result(10)
        assert failures == [error]

    def test_closing_ends_the_calls(self, stuck: tuple[Stuck, EmbeddedModels]) -> None:
        service, models = stuck
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(models, "tiny", tokens(4), ["logits"], version=1)
            assert service.asked.wait(10)
            models.close(0)
            with pytest.raises(Unavailable, match="stops serving"):
                call.result(10)
