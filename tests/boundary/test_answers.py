"""Every request gets exactly one response, whatever its service does."""

from __future__ import annotations

import pytest

from tests.boundary.clients import ProbeClient, outcome, together
from tidal_client.errors import RequestError

pytestmark = pytest.mark.server


def test_a_response_has_the_rows_of_its_request(ask: ProbeClient) -> None:
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
def test_an_invalid_reply_of_the_service_is_an_internal_error(ask: ProbeClient, action: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        ask(action, outputs=["echo"])
    assert refused.value.code == "INTERNAL"


def test_a_second_answer_is_ignored(ask: ProbeClient) -> None:
    assert ask("twice")["echo"].tolist() == [[b"twice"]]
    assert ask("reply")["echo"].tolist() == [[b"reply"]]


def test_only_requested_outputs_are_computed_and_sent(ask: ProbeClient) -> None:
    answer = ask("reply", outputs=["wanted", "rows"])
    assert sorted(answer) == ["rows", "wanted"]
    assert answer["wanted"].tolist() == [[b"rows,wanted"]]
    assert ask("reply")["wanted"].tolist() == [[b"echo,rows,wanted"]]


def test_a_failing_request_does_not_affect_others(ask: ProbeClient) -> None:
    def one(index: int) -> str:
        bad = {4: "drop", 9: "wrong-rows", 14: "bad-array"}.get(index)
        return outcome(ask, bad or f"reply {index}", **({"urgency": 1} if index == 19 else {}))

    for _ in range(3):
        answers = together(24, one)
        expected = {4: "INTERNAL", 9: "INTERNAL", 14: "INTERNAL", 19: "INVALID_ARG"}
        assert answers == [expected.get(index, "OK") for index in range(24)]


def test_checks_for_cancellation_during_the_reply_are_safe(ask: ProbeClient) -> None:
    assert together(200, lambda _: outcome(ask, "check-cancelled")) == ["OK"] * 200
