"""Pure decisions of the gateway, against hand-made cases and brute force."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidal_gateway.keys.rates import admit, charge
from tidal_gateway.upstream.policies import (
    AFFINITY_SLACK,
    MAX_RETRY_AFTER_S,
    Candidate,
    DrainRate,
    RetryBudget,
    choose,
    retry_after_s,
)
from tidal_gateway.upstream.status import parse_report

COUNTS = st.lists(st.integers(0, 12), min_size=1, max_size=5)


def servers(counts: list[int]) -> list[Candidate]:
    return [Candidate(f"host{number}:1", count) for number, count in enumerate(counts)]


class TestChoice:
    @given(COUNTS, st.integers(0, 20))
    def test_has_the_fewest_outstanding_requests(self, counts: list[int], turn: int) -> None:
        chosen = choose(servers(counts), turn)
        assert chosen is not None
        assert chosen.outstanding == min(counts)

    def test_equal_servers_alternate(self) -> None:
        chosen = [choose(servers([2, 1, 1, 1]), turn) for turn in range(6)]
        assert [each.address for each in chosen if each] == ["host1:1", "host2:1", "host3:1"] * 2

    def test_no_server(self) -> None:
        assert choose([], 0) is None

    @given(COUNTS, st.text(min_size=1, max_size=5), st.integers(0, 9))
    def test_affinity_is_kept_unless_the_server_is_busier(self, counts: list[int], affinity: str, turn: int) -> None:
        chosen, idle = choose(servers(counts), turn, affinity), choose(servers([0] * len(counts)), 0, affinity)
        assert chosen is not None
        assert idle is not None
        preferred = servers(counts)[int(idle.address[4])]
        assert chosen.outstanding <= min(counts) + AFFINITY_SLACK
        if preferred.outstanding <= min(counts) + AFFINITY_SLACK:
            assert chosen == preferred

    def test_affinities_spread_over_the_servers(self) -> None:
        chosen = [choose(servers([0, 0, 0]), 0, f"task {number}") for number in range(90)]
        counts = [sum(each.address == f"host{number}:1" for each in chosen if each) for number in range(3)]
        assert min(counts) > 15


class TestRetryBudget:
    @given(st.lists(st.tuples(st.floats(0, 3), st.booleans()), max_size=200))
    def test_retries_never_exceed_their_share_of_the_window(self, steps: list[tuple[float, bool]]) -> None:
        budget, now = RetryBudget(0.1, 10.0), 0.0
        requests: list[float] = []
        retries: list[float] = []
        for pause, retry in steps:
            now += pause
            if not retry:
                budget.sent(now)
                requests.append(now)
            elif budget.allow(now):
                retries.append(now)
            inside = [sum(now - each < 10 for each in times) for times in (requests, retries)]
            if retry and retries and retries[-1] == now:
                assert inside[1] <= 0.1 * inside[0]

    def test_the_share_is_used(self) -> None:
        budget = RetryBudget()
        for _ in range(20):
            budget.sent(1.0)
        assert [budget.allow(1.0) for _ in range(3)] == [True, True, False]
        budget.sent(12.0)
        assert not budget.allow(12.0)


class TestDrainRate:
    def test_answers_per_second_while_the_queue_is_long(self) -> None:
        rate = DrainRate()
        for second in range(100):  # one a second is what was sent, not what the model can do
            rate.answered(float(second))
        rate.pressed(100.0)
        assert rate.per_second(100.0) == 0
        for number in range(400):
            rate.answered(100 + number * 0.01)
            rate.pressed(100 + number * 0.01)
        assert rate.per_second(104.0) == pytest.approx(100, rel=0.01)
        for number in range(150):
            rate.answered(104 + number * 0.1)
            rate.pressed(104 + number * 0.1)
        assert rate.per_second(119.0) == pytest.approx(10, rel=0.02)
        assert rate.per_second(130.0) == 0

    def test_retry_after_is_when_half_of_the_queue_is_answered(self) -> None:
        assert retry_after_s(100, 100, 10.0) == 5
        assert retry_after_s(100, 100, 1000.0) == 1
        assert retry_after_s(100, 100, 0.1) == MAX_RETRY_AFTER_S

    def test_without_an_answer_clients_wait_as_long_again(self) -> None:
        rate = DrainRate()
        rate.pressed(50.0)
        found = [retry_after_s(9, 9, rate.per_second(now), rate.silent_s(now)) for now in (50.0, 54.5, 59.0, 400.0)]
        assert found == [1, 5, 9, MAX_RETRY_AFTER_S]


class TestRates:
    @given(st.integers(1, 50), st.lists(st.floats(0, 20), max_size=120))
    def test_no_minute_has_more_than_twice_the_limit_and_the_first_has_the_limit(
        self, limit: int, pauses: list[float]
    ) -> None:
        arrival, now, accepted = 0.0, 1000.0, []
        for pause in [0.0] * (limit + 1) + pauses:
            now += pause
            arrival, wait_s = admit(arrival, now, limit)
            if not wait_s:
                accepted.append(now)
        assert sum(each == 1000.0 for each in accepted) >= limit
        for begin in accepted:
            # A full allowance and what comes back within the minute.
            assert sum(begin <= each < begin + 60 for each in accepted) <= 2 * limit
        span = accepted[-1] - accepted[0]
        assert len(accepted) <= limit + span * limit / 60 + 1

    @given(st.integers(1, 50), st.floats(0, 100))
    def test_the_wait_is_exact(self, limit: int, now: float) -> None:
        arrival = 0.0
        for _ in range(limit):
            arrival, wait_s = admit(arrival, now, limit)
            assert wait_s == 0
        _, wait_s = admit(arrival, now, limit)
        assert wait_s == pytest.approx(60 / limit)
        assert admit(arrival, now + wait_s * 0.9, limit)[1] > 0
        assert admit(arrival, now + wait_s, limit)[1] == 0

    def test_tokens_are_charged_afterwards(self) -> None:
        assert admit(0.0, 100.0, 600, 0)[1] == 0
        arrival = charge(0.0, 100.0, 600, 1200)  # two minutes of tokens in one answer
        wait_s = admit(arrival, 100.0, 600, 0)[1]
        assert math.isclose(wait_s, 60.1)
        assert admit(arrival, 160.2, 600, 0)[1] == 0


class TestReport:
    def test_has_the_state_of_the_server(self) -> None:
        found = {
            state: parse_report(b'{"server_restarts": 0, "not_ready": {}, "state": "%s"}' % state.encode())
            for state in ("serving", "starting", "restarting", "ending")
        }
        assert [name for name, each in found.items() if each and each.coming] == ["starting", "restarting"]
        assert [name for name, each in found.items() if each and each.ending] == ["ending"]

    def test_counts_restarts_of_server_and_model(self) -> None:
        text = b'{"server_restarts": 2, "restarts": {"a": 3}, "not_ready": {"b": "why"}, "restarting": ["a"]}'
        report = parse_report(text)
        assert report is not None
        assert (report.restarts("a"), report.restarts("b"), report.not_ready) == (5, 2, frozenset({"a", "b"}))

    @pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"server_restarts": "x", "not_ready": {}}', b"\xff"])
    def test_other_documents_are_no_report(self, text: bytes) -> None:
        assert parse_report(text) is None
