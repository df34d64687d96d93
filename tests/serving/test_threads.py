"""The thread that answers requests, and joining threads until a common deadline."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import cast

from testing.requests import make_context
from testing.waiting import until
from tidal.serving.threads import AnswerThread, join_until, remaining_s


def test_items_are_answered_in_order_on_one_thread_before_it_ends(tmp_path: Path) -> None:
    answered: list[int | None] = []
    threads: set[str] = set()

    def answer(item: int | None) -> None:
        threads.add(threading.current_thread().name)
        answered.append(item)

    answers = AnswerThread[int | None](make_context(tmp_path), answer)
    items = [3, None, 1, 2]  # None is an item like any other
    for item in items:
        answers.put(item)
    answers.close(time.monotonic() + 10)
    assert answered == items
    assert threads == {"m-responder"}


def test_an_exception_ends_the_service(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def answer(_item: int) -> None:
        raise ValueError("broken")

    answers = AnswerThread[int](make_context(tmp_path, failures=failures), answer)
    answers.put(1)
    assert until(lambda: len(failures) == 1)
    answers.close(time.monotonic() + 10)
    assert [str(error) for error in failures] == ["broken"]


def test_close_waits_until_its_deadline_only(tmp_path: Path) -> None:
    hold, answered = threading.Event(), list[int]()

    def answer(item: int) -> None:
        hold.wait(20)
        answered.append(item)

    answers = AnswerThread[int](make_context(tmp_path), answer)
    answers.put(1)
    began = time.monotonic()
    answers.close(began + 0.05)
    assert time.monotonic() - began > 0.04
    assert not answered
    hold.set()


def test_threads_share_the_remaining_time() -> None:
    hold = threading.Event()
    threads = [threading.Thread(target=hold.wait, args=(20,), daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    given = list[float]()

    class Recording:
        """A thread that notes how long it is waited for."""

        def __init__(self, thread: threading.Thread) -> None:
            self._thread = thread

        def join(self, timeout: float) -> None:
            given.append(timeout)
            self._thread.join(timeout)

    began = time.monotonic()
    join_until(began + 0.5, cast("list[threading.Thread]", [Recording(each) for each in threads]))
    assert time.monotonic() - began > 0.49
    assert len(given) == 4
    assert sum(given) < 0.6  # not 0.5 s for each
    hold.set()
    join_until(time.monotonic() + 10, threads)
    assert not any(thread.is_alive() for thread in threads)
    assert remaining_s(time.monotonic() - 1) == 0.0
    assert 0 < remaining_s(time.monotonic() + 100) <= 100


def test_draining_waits_for_answers_of_all_threads(tmp_path: Path) -> None:
    holds = {"queued": threading.Event(), "here": threading.Event()}
    started = {item: threading.Event() for item in holds}

    def answer(item: str) -> None:
        started[item].set()
        holds[item].wait(20)

    answers = AnswerThread[str](make_context(tmp_path), answer)

    def drain_s(timeout_s: float) -> float:
        began = time.monotonic()
        answers.drain(timeout_s)
        return time.monotonic() - began

    assert drain_s(20) < 5
    answers.put("queued")
    here = threading.Thread(target=answers.answer_here, args=("here",))
    here.start()
    assert started["here"].wait(20)
    assert drain_s(0.1) >= 0.1
    holds["queued"].set()
    assert drain_s(0.1) >= 0.1
    threading.Timer(0.1, holds["here"].set).start()
    assert drain_s(20) < 5
    here.join(10)
    answers.close(time.monotonic() + 10)
