"""Answers that `execute` returns as a list, and how long it waits for them; without Triton."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidal.triton.answer_list import AnswerList, AnswerSlot, ReturnWindow


class Sender:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[object, int]] = []

    def send(self, response: object, flags: int = 0) -> None:
        self.sent.append((response, flags))

    def is_cancelled(self) -> bool:
        return True


@given(st.permutations(range(6)), st.integers(0, 6))
def test_each_answer_is_in_the_list_or_has_to_be_sent(order: list[int], before: int) -> None:
    answers = AnswerList(len(order))
    assert all(answers.put(index, index) for index in order[:before])
    collected = answers.collect(0.0)
    assert [index for index, answer in enumerate(collected) if answer is not None] == sorted(order[:before])
    assert all(answer in (None, index) for index, answer in enumerate(collected))
    assert not any(answers.put(index, index) for index in order[before:])
    assert collected.count(None) == answers.missing == len(order) - before


@given(st.permutations(range(6)), st.integers(0, 6))
def test_only_answers_in_the_list_are_recorded_with_it(order: list[int], before: int) -> None:
    answers = AnswerList(len(order))
    for index in order[:before]:
        assert answers.open
        answers.put(index, "answer", None if index == 3 else index)  # a refused request has nothing to record
    answers.collect(0.0)
    assert not answers.open
    for index in order[before:]:
        answers.put(index, "answer", index)
    assert answers.endings == [index for index in order[:before] if index != 3]


@pytest.mark.timeout(30)
def test_the_list_is_returned_when_its_last_answer_arrives() -> None:
    answers = AnswerList(2)

    def answer() -> None:
        time.sleep(0.02)
        answers.put(0, "first")
        answers.put(1, "second")

    thread = threading.Thread(target=answer)
    thread.start()
    assert answers.collect(1000.0) == ["first", "second"]
    thread.join()


def test_the_wait_is_bounded() -> None:
    answers = AnswerList(2)
    answers.put(1, "second")
    assert answers.collect(0.001) == [None, "second"]


def test_an_answer_is_sent_once_the_list_has_been_collected() -> None:
    sender, answers = Sender(), AnswerList(2)
    AnswerSlot(sender, answers, 0).answer("early", 1)
    answers.collect(0.0)
    AnswerSlot(sender, answers, 1).answer("late", 1)
    assert sender.sent == [("late", 1)]


def test_answers_of_decoupled_models_are_sent() -> None:
    sender = Sender()
    slot = AnswerSlot(sender)
    slot.part("part")
    slot.answer("last", 1)
    assert sender.sent == [("part", 0), ("last", 1)]
    assert slot.is_cancelled()


def waits(window: ReturnWindow, calls: int, complete: bool) -> int:
    """Count the calls in which a window waits, with this outcome of each wait."""
    count = 0
    for _ in range(calls):
        if window.wait_s(1):
            window.waited(complete)
            count += 1
    return count


def test_a_slow_model_is_waited_for_in_few_calls() -> None:
    window = ReturnWindow()
    assert waits(window, 20, complete=True) == 20
    waits(window, 10, complete=False)
    assert waits(window, 160, complete=False) == 10
    # Trials that succeed open it again, after some of them.
    waits(window, 160, complete=True)
    assert waits(window, 20, complete=True) == 20


def test_a_single_late_call_does_not_close_the_window() -> None:
    window = ReturnWindow()
    for _ in range(10):
        assert waits(window, 1, complete=False) == 1
        assert waits(window, 4, complete=True) == 4


def test_calls_of_many_requests_may_wait_longer() -> None:
    window = ReturnWindow()
    assert 0 < window.wait_s(1) < window.wait_s(32) < 0.02
