"""Exactly one answer to every request, whatever its service does with it."""

from __future__ import annotations

import pytest

from tests.boundary.asking import Asker, Refused

pytestmark = pytest.mark.server


def test_an_answer_carries_its_rows(ask: Asker) -> None:
    answer = ask(["reply", "reply b", "reply ü"])
    assert answer["echo"].tolist() == [[b"reply"], [b"reply b"], ["reply ü".encode()]]
    assert answer["rows"].tolist() == [[3]] * 3


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("drop", "the model dropped the request without an answer"),
        ("no-output", "the output 'echo' is declared in config.pbtxt, but the model does not give it"),
        ("wrong-rows", "the output 'echo' has 2 rows for a request of 1"),
        ("bad-array", "the output 'echo' cannot be sent"),
        ("raise-in-submit", "the model failed: ValueError: raised in submit"),
        ("raise-in-thread", "the model failed: KeyError: 'raised in thread'"),
    ],
)
def test_a_service_that_errs_is_answered_for(ask: Asker, action: str, message: str) -> None:
    with pytest.raises(Refused, match=message) as refused:
        ask(action, outputs=["echo"])
    assert refused.value.code == "INTERNAL"


def test_a_second_answer_is_ignored(ask: Asker) -> None:
    assert ask("twice")["echo"].tolist() == [[b"twice"]]
    assert ask("reply")["echo"].tolist() == [[b"reply"]]
