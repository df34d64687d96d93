"""Exactly one answer to every request, whatever its service does with it."""

from __future__ import annotations

import pytest

from tests.boundary.asking import Asker, outcome, together
from tidal_client.errors import RequestError

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
        ("wrong-type", "the output 'echo' is float32, but config.pbtxt declares object"),
        ("bad-array", "the output 'echo' cannot be sent"),
    ],
)
def test_a_request_that_the_service_spoils_is_answered_for(ask: Asker, action: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        ask(action, outputs=["echo"])
    assert refused.value.code == "INTERNAL"


def test_a_second_answer_is_ignored(ask: Asker) -> None:
    assert ask("twice")["echo"].tolist() == [[b"twice"]]
    assert ask("reply")["echo"].tolist() == [[b"reply"]]


def test_only_the_outputs_asked_for_are_made_and_sent(ask: Asker) -> None:
    answer = ask("reply", outputs=["wanted", "rows"])
    assert sorted(answer) == ["rows", "wanted"]
    assert answer["wanted"].tolist() == [[b"rows,wanted"]]
    assert ask("reply")["wanted"].tolist() == [[b"echo,rows,wanted"]]


def test_one_bad_request_among_many_harms_no_other(ask: Asker) -> None:
    def one(index: int) -> str:
        bad = {4: "drop", 9: "wrong-rows", 14: "bad-array"}.get(index)
        return outcome(ask, bad or f"reply {index}", **({"urgency": 1} if index == 19 else {}))

    for _ in range(3):
        answers = together(24, one)
        expected = {4: "INTERNAL", 9: "INTERNAL", 14: "INTERNAL", 19: "INVALID_ARG"}
        assert answers == [expected.get(index, "OK") for index in range(24)]


def test_asking_about_a_request_that_is_being_answered_harms_nobody(ask: Asker) -> None:
    assert together(200, lambda _: outcome(ask, "ask-meanwhile")) == ["OK"] * 200
