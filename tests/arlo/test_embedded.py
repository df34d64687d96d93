"""An `arlo` model embedded in the process of another model."""

from __future__ import annotations

import dataclasses
import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from testing.requests import make_context
from testing.waiting import until
from tests.arlo.conftest import Built
from tidal.arlo.embedded import EmbeddedCall, EmbeddedModels, LoadedModel, LocalService, load_embedded
from tidal.arlo.model import EncoderModel, EncoderRun, open_model
from tidal.arlo.policies import ArloBatch, PolymorphicPolicy
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.errors import Cancelled, Internal, InvalidArgument, TidalError, Unavailable
from tidal.metrics import Metrics
from tidal.requests import PendingRequest
from tidal.service import ServiceContext

LOG = logging.getLogger("test")
LOGITS = frozenset({"logits"})
BOTH = frozenset({"logits", "attention_received"})
Call = EmbeddedCall[int]


class Ended:
    """Keeps calls that ended, in the batches in which they were passed on, and the threads that did."""

    def __init__(self) -> None:
        self.batches: list[list[Call]] = []
        self.threads: list[str] = []

    def __call__(self, calls: Sequence[Call]) -> None:
        self.threads.append(threading.current_thread().name)
        self.batches.append(list(calls))

    @property
    def calls(self) -> list[Call]:
        return [call for batch in self.batches for call in batch]

    def wait(self, count: int) -> list[Call]:
        assert until(lambda: len(self.calls) >= count)
        assert len(self.calls) == count
        return self.calls


def outer_context(failures: list[BaseException]) -> ServiceContext:
    return make_context(Path("outer"), Metrics("tabi"), model="outer", outputs=frozenset({"label"}), failures=failures)


@pytest.fixture(scope="module")
def loaded(built: Built) -> LoadedModel:
    return load_embedded(built.repository / "tiny" / "1", "tiny", LOG)


@pytest.fixture
def failures() -> list[BaseException]:
    return []


@pytest.fixture
def ended() -> Ended:
    return Ended()


@pytest.fixture
def models(loaded: LoadedModel, failures: list[BaseException], ended: Ended) -> Iterator[EmbeddedModels[int]]:
    context = outer_context(failures)
    found = EmbeddedModels(context, [loaded], {"tiny": context.metrics.within("runtime", level="1")}, ended)
    yield found
    found.close(5)


def tokens(length: int, seed: int = 0) -> TokenRow:
    ids = np.random.default_rng(seed).integers(5, 60, length)
    return TokenRow(ids, np.ones_like(ids), np.zeros_like(ids))


def make(
    number: int,
    *lengths: int,
    wanted: frozenset[str] = LOGITS,
    deadline: float | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Call:
    return EmbeddedCall(number, [tokens(length, number) for length in lengths], wanted, deadline, cancelled)


def error_of(call: Call) -> TidalError:
    assert call.error is not None
    assert call.outputs is None
    return call.error


def test_outputs_equal_those_of_its_engines(models: EmbeddedModels[int], built: Built, ended: Ended) -> None:
    model = open_model(built.repository / "tiny" / "1")
    calls = [make(number, 3 + number % 50, 7, wanted=BOTH) for number in range(60)]
    models.submit("tiny", 1, calls)
    assert {call.owner for call in ended.wait(60)} == set(range(60))
    for call in calls:
        assert call.outputs is not None
        assert set(call.outputs) >= BOTH
        assert call.record.began is not None
        assert call.record.ended is not None
        assert call.arrival <= call.record.began <= call.record.ended
        for index, row in enumerate(call.tokens):
            runtime = next(i for i, each in enumerate(model.manifest.runtimes) if each.max_length >= len(row.ids))
            wanted = model.run(0, runtime, [row])
            np.testing.assert_allclose(call.outputs["logits"][index], wanted["logits"][0], atol=1e-4)
            received = call.outputs["attention_received"][index]
            np.testing.assert_allclose(
                received[: len(row.ids)], wanted["attention_received"][0, : len(row.ids)], atol=1e-3
            )
            assert not received[len(row.ids) :].any()


def wait_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads wait for batches for so long that no pause of the machine ends the wait."""
    for limit in ("HERE_S", "SHORT_S", "ALONE_S"):
        monkeypatch.setattr(f"tidal.arlo.submitter_wait.{limit}", 60.0)


def test_a_thread_that_may_wait_passes_short_calls_on_itself(
    models: EmbeddedModels[int], ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_long(monkeypatch)
    call = make(0, 4)
    models.submit("tiny", 1, [call], wait=True)
    assert ended.calls == [call]
    assert ended.threads == [threading.current_thread().name]


def test_a_thread_that_may_not_wait_passes_no_calls_on(
    models: EmbeddedModels[int], ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_long(monkeypatch)
    for number in range(20):
        models.submit("tiny", 1, [make(number, 4)])
        ended.wait(number + 1)
    assert threading.current_thread().name not in ended.threads


def test_only_its_models_are_embedded(models: EmbeddedModels[int]) -> None:
    assert ("tiny", 1) in models
    assert ("tiny", 2) not in models
    assert ("other", 1) not in models


def test_metrics_are_those_of_the_outer_model(loaded: LoadedModel, ended: Ended) -> None:
    context = outer_context([])
    models = EmbeddedModels(context, [loaded], {"tiny": context.metrics.within("runtime", level="2")}, ended)
    models.submit("tiny", 1, [make(0, 4)])
    models.close(5)
    ended.wait(1)
    found = {(each.family, each.labels): each.value for each in context.metrics.samples()}
    assert found["tidal_tabi_runtime_executed_queries_total", (("level", "2"), ("runtime", "16"))] == 1


def test_a_query_that_is_too_long_is_refused_alone(models: EmbeddedModels[int], ended: Ended) -> None:
    long, short = make(0, 4, 65), make(1, 64)
    models.submit("tiny", 1, [long, short])
    ended.wait(2)
    assert isinstance(error_of(long), InvalidArgument)
    assert str(long.error) == "a query has 65 tokens; model 'tiny' reads at most 64"
    assert short.outputs is not None


def test_a_query_that_would_miss_its_deadline_is_refused(models: EmbeddedModels[int], ended: Ended) -> None:
    late = make(0, 64, deadline=time.monotonic() + 1e-6)
    models.submit("tiny", 1, [late])
    ended.wait(1)
    with pytest.raises(Unavailable, match="deadline"):
        raise error_of(late)


def test_a_cancelled_query_is_not_run(models: EmbeddedModels[int], ended: Ended) -> None:
    withdrawn = make(0, 4, cancelled=lambda: True)
    withdrawn.arrival -= 1  # the client is asked only about calls that have waited
    models.submit("tiny", 1, [withdrawn])
    ended.wait(1)
    assert isinstance(error_of(withdrawn), Cancelled)


def test_answers_of_a_batch_are_passed_on_together(
    models: EmbeddedModels[int], ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    start = EncoderModel.start

    def counting(
        self: EncoderModel, lane: int, runtime: int, rows: Sequence[TokenRow], deadline: float | None
    ) -> EncoderRun | None:
        batches.append(len(rows))
        return start(self, lane, runtime, rows, deadline)

    monkeypatch.setattr(EncoderModel, "start", counting)
    models.submit("tiny", 1, [make(number, 8) for number in range(48)])
    ended.wait(48)
    assert max(batches) > 1
    # Two threads may answer at the same time, and one then passes on what the other has collected.
    assert len(ended.batches) <= len(batches)
    assert threading.current_thread().name not in ended.threads


def test_an_engine_that_fails_ends_its_calls_alone(
    models: EmbeddedModels[int], ended: Ended, monkeypatch: pytest.MonkeyPatch, failures: list[BaseException]
) -> None:
    def broken(*_: object) -> EncoderRun:
        raise ValueError("boom")

    with monkeypatch.context() as patch:
        patch.setattr(EncoderModel, "start", broken)
        models.submit("tiny", 1, [make(number, 4) for number in range(10)])
        assert {str(error_of(call)) for call in ended.wait(10)} == {"the engine failed: boom"}
    models.submit("tiny", 1, [make(10, 4)])
    assert ended.wait(11)[-1].outputs is not None
    assert not failures


@pytest.mark.parametrize("wait", [False, True])
def test_a_failed_policy_fails_the_outer_model(
    models: EmbeddedModels[int],
    ended: Ended,
    failures: list[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    wait: bool,
) -> None:
    def broken(self: PolymorphicPolicy, now: float) -> ArloBatch | None:
        if not len(self):
            return None  # a worker that has just started
        raise ValueError("broken")

    monkeypatch.setattr(PolymorphicPolicy, "next_batch", broken)
    models.submit("tiny", 1, [make(0, 4), make(1, 4)], wait=wait)
    assert {str(error_of(call)) for call in ended.wait(2)} == {"the model failed: ValueError: broken"}
    assert until(lambda: bool(failures))
    assert {str(failure) for failure in failures} == {"broken"}
    models.submit("tiny", 1, [make(2, 4)], wait=wait)
    assert str(error_of(ended.wait(3)[-1])) == "the model is being unloaded; send the request again"


def test_a_missing_version_does_not_load(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument):
        load_embedded(tmp_path / "1", "tiny", LOG)


class Stuck:
    """A service that keeps its requests until a test answers them."""

    def __init__(self, context: ServiceContext, replied: Callable[[], None]) -> None:
        self.context = context
        self.replied = replied
        self.requests: list[PendingRequest] = []

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        raise AssertionError("calls have tokens already")

    def submit_tokens(
        self, requests: Sequence[tuple[PendingRequest, Sequence[TokenRow]]], *, wait: bool = False
    ) -> None:
        self.requests += [request for request, _ in requests]

    def close(self, timeout_s: float) -> None:
        pass


class TestStuckService:
    @pytest.fixture
    def stuck(
        self, loaded: LoadedModel, failures: list[BaseException], ended: Ended
    ) -> tuple[Stuck, EmbeddedModels[int]]:
        made: list[Stuck] = []

        def start(context: ServiceContext, replied: Callable[[], None]) -> LocalService:
            made.append(Stuck(context, replied))
            return made[0]

        model = dataclasses.replace(loaded, start=start)
        context = outer_context(failures)
        models = EmbeddedModels(context, [model], {"tiny": context.metrics}, ended)
        return made[0], models

    def test_replies_are_kept_until_the_service_has_sent_all(
        self, stuck: tuple[Stuck, EmbeddedModels[int]], ended: Ended
    ) -> None:
        service, models = stuck
        calls = [make(number, 4) for number in range(3)]
        models.submit("tiny", 1, calls)
        for request in service.requests:
            request.reply({"logits": np.zeros((1, 2))})
        assert not ended.batches
        service.replied()
        service.replied()
        assert ended.batches == [calls]

    def test_its_failure_ends_the_calls_and_fails_the_outer_model(
        self, stuck: tuple[Stuck, EmbeddedModels[int]], failures: list[BaseException], ended: Ended
    ) -> None:
        service, models = stuck
        calls = [make(number, 4) for number in range(3)]
        models.submit("tiny", 1, calls)
        service.requests[1].reply({"logits": np.zeros((1, 2))})
        error = RuntimeError("broken")
        service.context.failed(error)
        assert set(ended.wait(3)) == set(calls)
        assert calls[1].outputs is not None
        for call in (calls[0], calls[2]):
            assert isinstance(error_of(call), Internal)
            assert str(call.error) == "the model failed: RuntimeError: broken"
        assert failures == [error]

    def test_a_reply_before_its_failure_is_passed_on(
        self, stuck: tuple[Stuck, EmbeddedModels[int]], ended: Ended
    ) -> None:
        service, models = stuck
        call = make(0, 4)
        models.submit("tiny", 1, [call])
        service.requests[0].reply({"logits": np.zeros((1, 2))})  # its thread fails before it reports the reply
        service.context.failed(RuntimeError("broken"))
        assert ended.batches == [[call]]
        assert call.outputs is not None

    def test_closing_ends_the_calls(self, stuck: tuple[Stuck, EmbeddedModels[int]], ended: Ended) -> None:
        _, models = stuck
        models.submit("tiny", 1, [make(0, 4)])
        models.close(0)
        with pytest.raises(Unavailable, match="is being unloaded"):
            raise error_of(ended.wait(1)[0])

    def test_an_abandoned_call_is_not_reported_and_not_run(
        self, stuck: tuple[Stuck, EmbeddedModels[int]], ended: Ended
    ) -> None:
        service, models = stuck
        first, second = make(0, 4), make(1, 4)
        models.submit("tiny", 1, [first, second])
        assert models.abandon(first)
        assert not models.abandon(first)
        assert service.requests[0].answered
        for request in service.requests:
            request.reply({"logits": np.zeros((1, 2))})
        service.replied()
        assert not models.abandon(second)
        models.close(0)
        assert ended.batches == [[second]]


def test_a_call_that_was_abandoned_before_is_neither_run_nor_kept(
    loaded: LoadedModel, failures: list[BaseException], ended: Ended
) -> None:
    """A timer may end calls before they are submitted: with a short deadline, on a busy machine."""
    context = outer_context(failures)
    models = EmbeddedModels(context, [loaded], {"tiny": context.metrics.within("runtime", level="1")}, ended)
    late, other = make(1, 5), make(2, 5)
    kept = weakref.ref(late)
    assert models.abandon(late)
    models.submit("tiny", 1, [late, other])
    assert [call.owner for call in ended.wait(1)] == [2]
    del late
    gc.collect()
    assert kept() is None
    models.close(5)
    assert len(ended.calls) == 1
