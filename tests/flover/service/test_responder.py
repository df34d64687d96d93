"""When parts of texts are sent, and that nothing stays behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testing.waiting import until
from tests.flover.service.running import FakePrompt, make_parser, write_tokenizer
from tidal.flover import responder
from tidal.flover.generation import Generation
from tidal.flover.responder import Responder, SendPacer, check_interval_s


@given(began=st.floats(0, 1e6), took=st.floats(0, 10), longest=st.floats(0, 10))
def test_sending_takes_a_tenth_of_the_time_and_no_token_waits_longer_than_it_may(
    began: float, took: float, longest: float
) -> None:
    pace = SendPacer(longest)
    ended = began + took
    pace.sent(began, ended)
    waits = pace.due - ended
    assert 0 <= waits <= longest + 1e-6
    assert waits == pytest.approx(min(longest, 9 * (ended - began)), abs=1e-6)


@dataclass(eq=False)
class Text:
    """In place of a stream: tokens that are there, and the parts that were sent."""

    cost_s: float = 0.0
    finish_reason: str | None = None
    tokens: int = 0
    parts: list[int] = field(default_factory=list)

    @property
    def urgent(self) -> bool:
        return self.finish_reason is not None or not self.parts

    def send_part(self) -> None:
        time.sleep(self.cost_s)
        self.parts.append(self.tokens - sum(self.parts))


@contextmanager
def responding(longest_s: float) -> Iterator[Responder]:
    responder = Responder(longest_s)
    thread = threading.Thread(target=responder.run)
    thread.start()
    try:
        yield responder
    finally:
        responder.close()
        thread.join(30)
        assert not thread.is_alive()


def push(responder: Responder, text: Text, *, finish: str | None = None) -> None:
    text.tokens += 1
    text.finish_reason = finish
    responder.send(cast(Generation, cast(Any, text)))


def test_first_tokens_and_ends_do_not_wait() -> None:
    with responding(3600.0) as responder:
        text, other = Text(), Text(cost_s=0.01)
        push(responder, other)
        assert until(lambda: other.parts == [1])
        push(responder, other)  # the first that may wait does not: nothing was sent before it
        assert until(lambda: other.parts == [1, 1])
        assert until(lambda: responder._pacer.due > 0)
        responder._pacer.due = time.monotonic() + 3600  # an hour of sending lies behind
        push(responder, other)
        push(responder, text)
        assert until(lambda: text.parts == [1])
        push(responder, text)
        push(responder, text, finish="length")
        assert until(lambda: text.parts == [1, 2])
        assert other.parts == [1, 1]
    assert other.parts == [1, 1, 1]  # closing sends what is queued


def test_tokens_go_together_where_sending_takes_long() -> None:
    with responding(0.2) as responder:
        texts = [Text(cost_s=0.005) for _ in range(4)]
        for _ in range(60):
            for text in texts:
                push(responder, text)
            time.sleep(0.002)
        for text in texts:
            push(responder, text, finish="length")
        assert until(lambda: all(sum(text.parts) == 61 for text in texts))
    assert all(len(text.parts) < 30 for text in texts)


def test_tokens_and_the_end_are_sent_once_if_they_were_queued_twice(tmp_path: Path) -> None:
    """A token is queued, and the end follows before the responder has sent it."""
    request = FakePrompt(["ab", "cd"], stream=True, max_tokens=2)
    first, last = make_parser(write_tokenizer(tmp_path)).parse(request)
    for generation in (first, last):
        generation.append(1, 0.0)
        generation.append(2, 0.0)
        assert generation.finish_reason == "length"
        generation.send_part()
        generation.send_part()
    assert request.answers == 1
    assert [part["token_ids"].tolist() for part in request.parts] == [[1, 2]]
    assert request.wait()["token_ids"].tolist() == [1, 2]


class Checked:
    """In place of a generation with slots, its response and its request: counts how often it is checked."""

    admitted, cancelled = True, False

    def __init__(self) -> None:
        self.response, self.checks, self.left = self, 0, False
        self.request = SimpleNamespace(cancelled=self.check)

    def check(self) -> bool:
        self.checks += 1
        return self.left


def test_cancellations_are_checked_between_steps_but_not_after_each_of_many_short_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(responder, "check_interval_s", lambda _: 3600.0)
    first, other = Checked(), Checked()
    with responding(1.0) as checking:
        checking.iteration_ended([cast(Any, first)])
        assert until(lambda: checking._check_at > 0 and first.checks == 1)
        other.left = True
        for _ in range(100):
            checking.iteration_ended([cast(Any, other)])
        time.sleep(0.05)  # in which a thread that does not wait would check
        assert other.checks == 0
        with checking._changed:  # an hour later
            checking._check_at = 0.0
            checking._changed.notify()
        assert until(lambda: other.cancelled)  # without a further iteration
    assert (first.checks, other.checks) == (1, 1)


def test_a_part_that_is_sent_does_not_postpone_the_check_of_a_waiting_request() -> None:
    waiting, text = Checked(), Text(tokens=1)
    waiting.admitted, waiting.left = False, True
    with responding(1.0) as checking:
        checking.send(cast(Any, text))
        assert until(lambda: text.parts == [1])
        checking.iteration_ended([cast(Any, waiting)])
        assert until(lambda: waiting.cancelled, 5)


@pytest.mark.parametrize(("round_ms", "interval_ms"), [(0, 20), (0.5, 20), (1, 32.3), (1.5, 48.5), (2, 60), (50, 60)])
def test_checks_take_a_share_of_the_time_but_are_never_rare(round_ms: float, interval_ms: float) -> None:
    assert check_interval_s(round_ms / 1e3) * 1e3 == pytest.approx(interval_ms, abs=0.1)


class Waits(Checked):
    """A check waits for the server process."""

    def check(self) -> bool:
        time.sleep(0.3)
        return super().check()


def test_the_time_that_a_check_waits_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responder, "_LONGEST_CHECK_INTERVAL_S", 3600.0)
    waits = Waits()
    with responding(1.0) as checking:
        for number in range(3):  # if it counted, 10 seconds apart
            checking.iteration_ended([cast(Any, waits)])
            assert until(lambda number=number: waits.checks > number, 5)  # type: ignore[misc]
