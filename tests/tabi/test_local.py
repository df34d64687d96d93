"""Levels in the cascade's process: each call ends once, whatever their models do, and none holds a thread."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.requests import make_context
from testing.waiting import until
from tests.tabi.serving import (
    MAX_LENGTH,
    OUTPUTS,
    SURE,
    UNSURE,
    VERSION,
    FakeLevels,
    Request,
    RunningService,
    cascades,
    word_id,
    write_cascade,
)
from tidal.access_log.record import RequestRecord
from tidal.arlo.embedded import EmbeddedModels, LoadedModel
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.errors import Cancelled, Internal, Unavailable
from tidal.metrics import Metrics
from tidal.requests import Array, PendingRequest
from tidal.service import ServiceContext
from tidal.tabi.choice import CandidateChoice
from tidal.tabi.manifest import TabiManifest
from tidal.tabi.parameters import TabiParameters
from tidal.tabi.service import TabiService
from tidal.tabi.tokenization import LevelTokenizers

Waiting = tuple[PendingRequest, Sequence[TokenRow]]


class HeldModel:
    """A level's model whose requests wait until the test answers them.

    Args:
        name: Name of the model.
        context: Context that it is started with.
        replied: Function to call after replies.
    """

    def __init__(self, name: str, context: ServiceContext, replied: Callable[[], None]) -> None:
        self.name = name
        self.context = context
        self.replied = replied
        self.waiting: list[Waiting] = []
        self.submissions: list[int] = []  # number of requests of each
        self.waits: list[bool] = []  # whether the submitting thread may wait
        self.at_once = False  # whether requests are answered before the submission returns

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        raise AssertionError("calls have tokens already")

    def submit_tokens(self, requests: Sequence[Waiting], *, wait: bool = False) -> None:
        self.submissions.append(len(requests))
        self.waits.append(wait)
        self.waiting += requests
        if self.at_once:
            self.reply(self.take())

    def close(self, timeout_s: float) -> None:
        pass

    def reply(self, taken: Sequence[Waiting], *, broken: bool = False) -> None:
        """Answer requests by their first word, as a batch; or with NaN."""
        for request, rows in taken:
            if self.name == "c_l0":
                logits = np.array([SURE if row.ids[1] == word_id("sure") else UNSURE for row in rows], np.float32)
            else:
                logits = np.tile(np.array([0.0, 3.0], np.float32), (len(rows), 1))
            received = np.ones((len(rows), max(len(row.ids) for row in rows)), np.float32)
            if request.record is not None:
                request.record.ran(time.monotonic(), time.monotonic())
            outputs: dict[str, Array] = {"logits": np.full_like(logits, np.nan) if broken else logits}
            if request.wants("attention_received"):
                outputs["attention_received"] = received
            request.reply(outputs)
        self.replied()

    def take(self) -> list[Waiting]:
        taken, self.waiting = self.waiting, []
        return taken


class Held(RunningService):
    """A running service whose levels are `HeldModel`s."""

    models: list[HeldModel]


@contextmanager
def holding_levels(folder: Path, *, close_s: float = 10, local: int = 2, **parameters: Any) -> Iterator[Held]:
    """Run the cascade in a folder over models that wait for the test; at the end it is closed.

    Args:
        folder: Folder of the cascade.
        close_s: Time for the service to close, seconds.
        local: Number of levels in the process; the others are `FakeLevels` on the server.
        parameters: Parameters of the cascade.
    """
    manifest = TabiManifest.model_validate_json((folder / str(VERSION) / "manifest.json").read_text())
    metrics, failures = Metrics("tabi"), list[BaseException]()
    context = make_context(
        folder, metrics, model="c", version=VERSION, outputs=OUTPUTS, call_model=FakeLevels(), failures=failures
    )
    models: list[HeldModel] = []

    def start(name: str, inner: ServiceContext, replied: Callable[[], None]) -> HeldModel:
        models.append(HeldModel(name, inner, replied))
        return models[-1]

    loaded = [
        LoadedModel(level.model, level.version, MAX_LENGTH, frozenset(), partial(start, level.model))
        for level in manifest.levels[:local]
    ]
    of_models = {model.name: metrics.within("runtime", level=model.name[-1]) for model in loaded}
    service = TabiService(
        context,
        manifest,
        TabiParameters(**parameters),
        CandidateChoice(manifest, None),
        LevelTokenizers(manifest, folder / str(VERSION), truncate=False),
        {},
        partial(EmbeddedModels, context, loaded, of_models),
    )
    run = Held(service, metrics, failures)
    run.models = models
    try:
        yield run
    finally:
        service.close(close_s)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_cascade(tmp_path, cascades())
    return tmp_path


def test_requests_are_sent_together_and_hold_no_threads(folder: Path) -> None:
    with holding_levels(folder) as run:
        threads = threading.active_count()
        requests = [Request("sure a" if number % 2 else "unsure b", *["sure"] * (number % 3)) for number in range(64)]
        run.submit(*requests)
        first, second = run.models
        assert first.submissions == [64]
        assert threading.active_count() <= threads  # those of earlier tests may end
        first.reply(first.take())
        assert second.submissions == [32]  # re-routed queries go on together
        assert [each.answered for each in requests] == [bool(number % 2) for number in range(64)]
        second.reply(second.take())
        found = [each.wait()["level"].ravel().tolist() for each in requests]
        assert found == [[1 if number % 2 else 2] + [1] * (number % 3) for number in range(64)]
        assert run.counts("level_queries_total", sum(map(len, found)), level="1")
        assert run.counts("answered_queries_total", 32, level="2")
    assert not run.failures


def test_only_the_submitting_thread_waits_for_levels(folder: Path) -> None:
    with holding_levels(folder) as run:
        first, second = run.models
        run.submit(Request("unsure"))
        first.reply(first.take())  # as a thread of the level does
        assert (first.waits, second.waits) == ([True], [False])
        second.reply(second.take())
        first.at_once = second.at_once = True
        lone = Request("unsure")
        run.submit(lone)
        assert lone.one("level") == 2
        assert (first.waits, second.waits) == ([True, True], [False, True])


def test_answers_that_are_ready_do_not_wait_for_a_further_level(folder: Path) -> None:
    with holding_levels(folder) as run:
        first, second = run.models
        first.at_once = True
        sure, unsure = Request("sure"), Request("unsure")
        run.submit(sure, unsure)
        assert sure.answered
        assert second.waits == [False]
        second.reply(second.take())
        assert unsure.one("level") == 2


def test_answers_of_a_batch_go_to_their_own_requests(folder: Path) -> None:
    with holding_levels(folder) as run:
        requests = [Request(text, max_level=1, request_id=text) for text in ("sure", "unsure", "sure a", "unsure a")]
        requests.append(Request("unsure", "sure", max_level=1))
        run.submit(*requests)
        first = run.models[0]
        first.reply(first.take()[::-1])
        found = [each.wait()["confidence"].ravel().tolist() for each in requests]
    sure, unsure = (pytest.approx(1 / (1 + np.exp(-logit))) for logit in (SURE[0], UNSURE[0]))
    assert found == [[sure], [unsure], [sure], [unsure], [unsure, sure]]


def test_a_level_on_the_server_continues_queries_of_one_in_the_process(folder: Path) -> None:
    with holding_levels(folder, local=1) as run:
        request = Request("unsure", "sure")
        run.submit(request)
        (first,) = run.models
        first.reply(first.take())
        assert request.wait()["level"].ravel().tolist() == [2, 1]
    assert not run.failures


def test_invalid_outputs_of_one_request_fail_it_alone(folder: Path) -> None:
    with holding_levels(folder) as run:
        bad, good = Request("sure"), Request("sure")
        run.submit(bad, good)
        first = run.models[0]
        one, other = first.take()
        one[0].reply({"logits": np.full((1, 2), np.nan, np.float32)})
        first.reply([other])
        with pytest.raises(Internal, match=r"level 1, model 'c_l0': .* not finite"):
            bad.wait()
        assert good.one("level") == 1


def test_a_level_that_takes_too_long_is_abandoned(folder: Path) -> None:
    with holding_levels(folder, level_timeout_ms=100) as run:
        request = Request("unsure")
        run.submit(request)
        first, second = run.models
        first.reply(first.take())
        assert (request.one("level"), request.one("degraded")) == (1, True)
        assert run.counts("lost_calls", 1, level="2")
        (late,) = second.take()
        assert late[0].answered  # its model skips it
        second.reply([late])
        del late
        assert run.counts("lost_calls", 0, level="2")
    assert request.answers == 1


def test_only_a_deadline_makes_a_call_urgent(folder: Path) -> None:
    with holding_levels(folder, level_timeout_ms=5000) as run:
        requests = Request("sure"), Request("sure", latency_ms=60_000), Request("sure", latency_ms=1000)
        run.submit(*requests)
        waiting = run.models[0].take()
        assert [request.deadline for request, _ in waiting] == [None, None, requests[2].deadline]
        run.models[0].reply(waiting)


def test_a_query_whose_client_cancelled_is_answered_so(folder: Path) -> None:
    with holding_levels(folder, on_first_level_failure="next") as run:
        request = Request("sure")
        run.submit(request)
        ((call, _),) = run.models[0].take()
        assert not call.cancelled()
        request.withdrawn = True
        assert call.cancelled()
        call.fail(Cancelled("the client cancelled the request while it waited"))
        with pytest.raises(Cancelled):
            request.wait()
        assert run.metric("level_failures_total") == 0


def test_a_request_that_was_answered_elsewhere_needs_no_level(folder: Path) -> None:
    with holding_levels(folder) as run:
        request = Request("unsure")
        run.submit(request)
        first, second = run.models
        request.fail(Unavailable("the deadline passed"))
        assert first.waiting[0][0].cancelled()
        first.reply(first.take())
        assert not second.submissions
    assert request.answers == 1


def test_times_of_the_execution_are_recorded(folder: Path) -> None:
    with holding_levels(folder) as run:
        request = Request("sure a b")
        request.record = RequestRecord("", request.arrival)
        run.submit(request)
        ((call, rows),) = run.models[0].take()
        assert call.record is not None
        call.record.ran(request.arrival + 2, request.arrival + 5)
        call.reply({"logits": np.array([SURE], np.float32)})
        run.models[0].replied()
        request.wait()
        assert (request.record.began, request.record.ended) == (request.arrival + 2, request.arrival + 5)
        assert request.record.tokens == len(rows[0].ids) == 5
        assert request.record.facts == {"level": [1]}
        assert run.metric("level_seconds_sum", level="1") == pytest.approx(3)
        assert run.metric("level_queue_seconds_sum", level="1") == pytest.approx(2, abs=0.5)


def test_a_model_that_fails_ends_its_calls_and_fails_the_cascade(folder: Path) -> None:
    with holding_levels(folder) as run:
        first_failed, second_failed = Request("sure"), Request("unsure")
        run.submit(first_failed, second_failed)
        first, second = run.models
        one, other = first.take()
        first.reply([other])
        error = RuntimeError("broken")
        second.context.failed(error)
        with pytest.raises(Internal, match="RuntimeError: broken"):
            first_failed.wait()
        assert (second_failed.one("level"), second_failed.one("degraded")) == (1, True)
        assert run.failures == [error]
        first.reply([one])
    assert first_failed.answers == second_failed.answers == 1


def test_closing_waits_for_answers_and_fails_the_rest(folder: Path) -> None:
    with holding_levels(folder) as run:
        request = Request("sure")
        run.submit(request)
        first = run.models[0]
        threading.Timer(0.2, lambda: first.reply(first.take())).start()
    assert request.one("level") == 1
    with holding_levels(folder, close_s=0.1) as run:
        request = Request("sure")
        run.submit(request)
    with pytest.raises(Unavailable, match="is being unloaded"):
        request.wait()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_every_request_gets_one_answer_in_any_order(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Models answer, fail, break and forget calls in any order and in batches of any size, on several threads."""
    folder = tmp_path_factory.getbasetemp() / "any_order"
    if not folder.exists():
        write_cascade(folder, cascades(pruning=0.5, three=True), chosen=3, tokenizers=(0, 0, 100))
    rng = random.Random(seed)
    policy = {
        "on_first_level_failure": rng.choice(["error", "next"]),
        "on_level_failure": rng.choice(["answer", "error"]),
    }
    requests: list[Request] = []
    with holding_levels(folder, local=3, level_timeout_ms=80, **policy) as run:
        sending = threading.Event()

        def answer(model: HeldModel, chance: random.Random) -> None:
            while not sending.is_set() or model.waiting:
                taken = model.take()
                chance.shuffle(taken)
                while taken:
                    size = chance.randint(1, len(taken))
                    batch, taken = taken[:size], taken[size:]
                    what = chance.random()
                    if what < 0.1:
                        for request, _ in batch:
                            request.fail(chance.choice([Internal("boom"), Unavailable("late"), Cancelled("gone")]))
                    elif what < 0.2:
                        model.reply(batch, broken=True)
                    elif what < 0.9:
                        model.reply(batch)
                        model.reply(batch)  # a second answer is ignored
                    # Else they are forgotten, and the timer ends them.
                time.sleep(chance.random() * 2e-3)

        threads = [
            threading.Thread(target=answer, args=(model, random.Random(seed + n)))
            for n, model in enumerate(run.models * 2)
        ]
        for thread in threads:
            thread.start()
        for number in range(40):
            texts = rng.choices(["sure a", "unsure drop b", "perhaps c", ""], [5, 5, 5, 1], k=rng.randint(1, 3))
            request = Request(*texts, latency_ms=rng.choice([None, None, 5.0, 60.0]), request_id=str(number))
            requests.append(request)
            if rng.random() < 0.1:
                request.fail(Unavailable("answered by the boundary"))
            if rng.random() < 0.5:
                run.submit(*requests[-1:])
            else:
                requests.append(Request("unsure"))
                run.submit(*requests[-2:])
        assert until(lambda: all(request.answered for request in requests))
        sending.set()
        for thread in threads:
            thread.join()
        closing = time.monotonic()
    assert time.monotonic() - closing < 5  # no request is left open
    assert [request.answers for request in requests] == [1] * len(requests)
    assert not run.failures
    for model in run.models:
        model.take()  # calls of requests that were answered by the boundary may have come after the threads ended
    for level in "123":
        assert run.counts("lost_calls", 0, level=level)
