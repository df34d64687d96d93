"""The service of a cascade without a server: levels that fail, hang, are late or are overloaded."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from testing.waiting import until
from tests.tabi.serving import FakeLevels, Request, cascades, holding, raising, running, write_cascade
from tidal.errors import Internal, InvalidArgument, TidalError, Unavailable
from tidal.service import ModelUnavailable


@pytest.mark.usefixtures("placement")
class TestFailures:
    @pytest.mark.parametrize("error", [Unavailable("the queue is full"), Internal("boom"), InvalidArgument("no")])
    def test_a_failed_level_degrades_the_answer(self, error: TidalError, tmp_path: Path) -> None:
        write_cascade(tmp_path, cascades())
        levels = FakeLevels()
        levels.before["c_l1"] = raising(error)
        with running(tmp_path, levels) as run:
            request = Request("unsure", "sure")
            run.submit(request)
            assert request.wait()["degraded"].ravel().tolist() == [True, False]
            assert request.wait()["level"].ravel().tolist() == [1, 1]
            assert run.counts("degraded_queries_total", 1, cause="failure")
            assert run.counts("level_failures_total", 1, level="2")
            assert run.counts("early_returned_queries_total", 1)

    def test_a_failed_level_fails_the_request_if_configured(self, tmp_path: Path) -> None:
        write_cascade(tmp_path, cascades())
        levels = FakeLevels()
        levels.before["c_l1"] = raising(Internal("boom"))
        with running(tmp_path, levels, on_level_failure="error") as run:
            request, sure = Request("unsure"), Request("sure")
            run.submit(request, sure)
            with pytest.raises(Internal, match="level 2, model 'c_l1': boom"):
                request.wait()
            assert sure.one("level") == 1

    def test_a_failed_first_level_fails_the_request_unless_the_next_may_answer(self, tmp_path: Path) -> None:
        write_cascade(tmp_path, cascades())
        levels = FakeLevels()
        levels.before["c_l0"] = raising(Unavailable("the queue is full"))
        with running(tmp_path, levels) as run:
            request = Request("sure")
            run.submit(request)
            with pytest.raises(Unavailable, match="level 1, model 'c_l0': the queue is full"):
                request.wait()
        with running(tmp_path, levels, on_first_level_failure="next") as run:
            request, limited = Request("sure", "unsure"), Request("sure", max_level=1)
            run.submit(request, limited)
            found = request.wait()
            assert (found["level"].ravel().tolist(), found["degraded"].ravel().tolist()) == ([2, 2], [True, True])
            assert found["probabilities"][0, 1] == pytest.approx(1 / (1 + np.exp(-3)))
            with pytest.raises(Unavailable):
                limited.wait()

    @pytest.mark.parametrize("logits", [[[np.nan, 0.0]], [[0.0, 1.0, 2.0]], [[0.0, 1.0]] * 2])
    def test_invalid_outputs_count_as_a_failure(self, logits: Any, tmp_path: Path) -> None:
        write_cascade(tmp_path, cascades())
        levels = FakeLevels()
        levels.instead["c_l1"] = lambda _: np.array(logits, np.float32)
        with running(tmp_path, levels) as run:
            request = Request("unsure")
            run.submit(request)
            assert (request.one("level"), request.one("degraded")) == (1, True)


class TestRetries:
    def test_a_level_that_is_briefly_unavailable_is_retried(self, tmp_path: Path) -> None:
        write_cascade(tmp_path, cascades())
        levels = FakeLevels()

        def unavailable(number: int) -> None:
            if number <= 3:
                raise ModelUnavailable("not ready", died=False)

        levels.before["c_l0"] = levels.before["c_l1"] = unavailable
        with running(tmp_path, levels) as run:
            request = Request("unsure")
            run.submit(request)
            assert (request.one("level"), request.one("degraded")) == (2, False)
        assert len(levels.of("c_l0")) == len(levels.of("c_l1")) == 4

    def test_a_level_that_stays_unavailable_is_retried_for_the_first_query_only(self, tmp_path: Path) -> None:
        write_cascade(tmp_path, cascades())
        levels = FakeLevels()
        levels.before["c_l1"] = raising(ModelUnavailable("not ready", died=False))
        with running(tmp_path, levels) as run:
            first = Request("unsure")
            run.submit(first)
            assert first.one("degraded")
            tries = len(levels.of("c_l1"))
            assert tries > 3
            second = Request("unsure")
            run.submit(second)
            assert second.one("degraded")
            assert len(levels.of("c_l1")) == tries + 1

    def test_a_query_whose_calls_end_with_a_crash_has_few_retries(self, tmp_path: Path) -> None:
        write_cascade(tmp_path, cascades())
        levels = FakeLevels()
        levels.before["c_l0"] = raising(ModelUnavailable("its process has died", died=True))
        with running(tmp_path, levels) as run:
            request = Request("sure")
            run.submit(request)
            with pytest.raises(Unavailable, match="level 1, model 'c_l0': its process has died"):
                request.wait()
        assert len(levels.calls) == 3


class TestSlowLevels:
    def test_calls_that_hang_block_neither_their_queries_nor_others(self, tmp_path: Path) -> None:
        write_cascade(tmp_path, cascades())
        levels, held = FakeLevels(), threading.Event()
        levels.before["c_l1"] = holding(held)
        with running(tmp_path, levels, max_in_flight=4, level_timeout_ms=150) as run:
            stuck = [Request("unsure") for _ in range(6)]
            run.submit(*stuck)
            assert [(each.one("level"), each.one("degraded")) for each in stuck] == [(1, True)] * 6
            assert run.metric("lost_calls", level="2") >= 2
            levels.before.clear()
            later, sure = Request("unsure"), Request("sure")
            run.submit(later, sure)
            assert (later.one("level"), later.one("degraded"), sure.one("level")) == (2, False, 1)
            held.set()
            assert run.counts("lost_calls", 0, level="2")
        assert all(request.answers == 1 for request in stuck)

    def test_a_level_is_not_called_while_all_its_calls_hang(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tidal.tabi.dispatch._SPARE_THREADS", 0)
        write_cascade(tmp_path, cascades())
        levels, held = FakeLevels(), threading.Event()
        levels.before["c_l0"] = holding(held)
        with running(tmp_path, levels, max_in_flight=2, level_timeout_ms=100) as run:
            stuck, next_one = Request("sure"), Request("sure")
            run.submit(stuck)
            with pytest.raises(Unavailable, match="no answer within"):
                stuck.wait()
            run.submit(next_one)
            with pytest.raises(Unavailable, match="calls to it do not end"):
                next_one.wait()
            held.set()
            assert run.counts("lost_calls", 0, level="1")
            again = Request("sure")
            run.submit(again)
            assert again.one("level") == 1

    def test_a_slow_level_does_not_block_queries_of_other_levels(self, tmp_path: Path) -> None:
        write_cascade(tmp_path, cascades())
        levels, held = FakeLevels(), threading.Event()
        levels.before["c_l1"] = holding(held)
        with running(tmp_path, levels, max_in_flight=4) as run:
            slow = [Request("unsure") for _ in range(20)]
            run.submit(*slow)
            assert until(lambda: len(levels.of("c_l1")) == 2)
            quick = [Request("sure") for _ in range(20)]
            run.submit(*quick)
            assert [each.one("level") for each in quick] == [1] * 20
            assert not any(each.answered for each in slow)
            held.set()
            assert [each.one("level") for each in slow] == [2] * 20


class TestDeadlines:
    @pytest.mark.usefixtures("placement")
    def test_an_escalation_that_would_miss_the_deadline_is_skipped(self, tmp_path: Path) -> None:
        write_cascade(tmp_path, cascades(), means_ms=(1.0, 10_000.0))
        levels = FakeLevels()
        with running(tmp_path, levels, on_level_failure="error") as run:
            urgent, unlimited = Request("unsure", latency_ms=5000), Request("unsure")
            run.submit(urgent, unlimited)
            assert (urgent.one("level"), urgent.one("degraded")) == (1, True)
            assert (unlimited.one("level"), unlimited.one("degraded")) == (2, False)
            assert run.counts("degraded_queries_total", 1, cause="deadline")
            assert run.metric("level_failures_total") == 0
        assert len(levels.of("c_l1")) == 1

    @pytest.mark.usefixtures("placement")
    @pytest.mark.parametrize("refused", [True, False])
    def test_at_the_deadline_the_answer_of_the_smaller_level_is_returned(self, refused: bool, tmp_path: Path) -> None:
        write_cascade(tmp_path, cascades())
        levels, held = FakeLevels(), threading.Event()

        def late(_number: int) -> None:
            if refused:
                raise Unavailable("the deadline cannot be met")
            held.wait(30)

        levels.before["c_l1"] = late
        with running(tmp_path, levels, on_level_failure="error") as run:
            request = Request("unsure", latency_ms=1000)
            run.submit(request)
            assert (request.one("level"), request.one("degraded")) == (1, True)
            held.set()
        first, second = (call.latency_ms for call in levels.calls)
        assert first is not None
        assert second is not None
        assert 0 < second < first <= 1000

    def test_without_a_deadline_a_call_has_the_timeout_of_levels(self, tmp_path: Path) -> None:
        write_cascade(tmp_path, cascades())
        levels = FakeLevels()
        with running(tmp_path, levels, level_timeout_ms=5000) as run:
            request = Request("sure")
            run.submit(request)
            request.wait()
        assert 0 < cast(float, levels.calls[0].latency_ms) <= 5000


@pytest.mark.usefixtures("placement")
def test_under_overload_a_faster_candidate_serves_and_later_the_first_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidal.tabi.choice._COOLDOWN_S", 0.0)
    monkeypatch.setattr("tidal.tabi.choice._CALM_S", 0.2)
    write_cascade(tmp_path, cascades())
    levels = FakeLevels()
    levels.before["c_l1"] = lambda number: time.sleep(0.1)
    # A busy machine delays queries by a few milliseconds, which are no overload.
    with running(tmp_path, levels, overload_ms=20, overload_accuracy=0.5) as run:
        assert run.metric("active_candidate", candidate="both") == 1

        def ask(**options: Any) -> int:
            request = Request("unsure", **options)
            run.submit(request)
            return int(request.one("level"))

        assert until(lambda: ask() == 1)
        assert run.metric("active_candidate", candidate="small") == 1
        assert run.metric("active_candidate", candidate="both") == 0
        assert ask(accuracy=0.95) == 2  # a client's own option takes precedence
        levels.before.clear()
        assert until(lambda: ask() == 2)
        assert run.metric("active_candidate", candidate="both") == 1


@pytest.mark.usefixtures("placement")
def test_every_request_gets_one_answer_under_random_failures(tmp_path: Path) -> None:
    write_cascade(tmp_path, cascades(pruning=0.5))
    rng = random.Random(1)
    levels = FakeLevels()

    def trouble(_number: int) -> None:
        time.sleep(rng.random() * 0.02)
        draw = rng.random()
        if draw < 0.1:
            raise ModelUnavailable("away", died=draw < 0.03)
        if draw < 0.2:
            raise Internal("boom")
        if draw < 0.25:
            raise ValueError("a bug")
        if draw < 0.3:
            time.sleep(0.2)

    levels.before = {"c_l0": trouble, "c_l1": trouble}
    requests = []
    with running(tmp_path, levels, level_timeout_ms=100, max_in_flight=8, on_first_level_failure="next") as run:
        for number in range(300):
            texts = rng.choices(["sure a", "unsure drop b", "perhaps c", ""], k=rng.randint(1, 4))
            request = Request(*texts, latency_ms=rng.choice([None, None, 20.0, 200.0]), request_id=str(number))
            requests.append(request)
            run.submit(request)
    # Closing waits for all accepted requests.
    assert [request.answers for request in requests] == [1] * 300
    assert any(request.error is None for request in requests)
