"""Choice and back-off of addresses: a fake clock, fixed chance, and calls in any order; without a server."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidal_client.balance import Balance, Sent
from tidal_client.errors import (
    Cancelled,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    RequestError,
    ServerError,
    Unavailable,
)
from tidal_client.transports.routes import Routes

ERRORS = (
    ConnectionFailed("no connection"),
    DeadlineExceeded("no answer"),
    Unavailable("Stub process 'm_0_0' is not healthy."),
    Unavailable("the model's queue is full"),
    Cancelled("cancelled"),
    InvalidArgument("no"),
    NotFound("no"),
    ServerError("boom"),
)
RELOADED = ERRORS[2]


class Clock:
    """A clock that only tests advance."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def balance(addresses: int, *, chance: float = 0.0) -> tuple[Balance, Clock]:
    clock = Clock()
    return Balance(addresses, clock, lambda: chance), clock


def fail(found: Balance, sent: Sent, error: RequestError) -> None:
    found.failed(sent, error)
    found.ended(sent)


def answer(found: Balance, sent: Sent) -> bool:
    restored = found.answered(sent)
    found.ended(sent)
    return restored


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_order_of_calls(data: st.DataObject) -> None:
    """Against a plain count of what is outstanding: the least busy of those that are in, else the soonest."""
    addresses = data.draw(st.integers(1, 5))
    clock, chance = Clock(), random.Random(data.draw(st.integers(0, 1000)))
    found = Balance(addresses, clock, chance.random)
    flying, counted = list[Sent](), Counter[int]()
    for _ in range(data.draw(st.integers(1, 60))):
        step = data.draw(st.sampled_from(("send", "answer", "fail", "wait")))
        if step == "wait":
            clock.now += data.draw(st.sampled_from((0.05, 0.3, 2.0, 10.0)))
        elif step == "send":
            model = data.draw(st.sampled_from(("a", "b", None)))
            tried = data.draw(st.sets(st.integers(0, addresses - 1)))
            until = [found.out_until(address, model) for address in range(addresses)]
            usable = [address for address in range(addresses) if until[address] <= clock.now]
            sent = found.choose(model, tried)
            if usable:
                among = [address for address in usable if address not in tried] or usable
                assert sent.address in among
                assert counted[sent.address] == min(counted[address] for address in among)
            else:
                among = [address for address in range(addresses) if address not in tried] or list(range(addresses))
                assert sent.address in among
                assert until[sent.address] == min(until[address] for address in among)
            counted[sent.address] += 1
            flying.append(sent)
        elif flying:
            sent = flying.pop(data.draw(st.integers(0, len(flying) - 1)))
            counted[sent.address] -= 1
            if step == "answer":
                answer(found, sent)
            else:
                fail(found, sent, data.draw(st.sampled_from(ERRORS)))
        assert found.outstanding == tuple(counted[address] for address in range(addresses))
        assert min(found.outstanding) >= 0
        for address in range(addresses):
            for model in ("a", "b", None):
                assert found.out_until(address, model) <= clock.now + 5.0


@given(st.integers(1, 6), st.floats(0, 1, exclude_max=True), st.integers(1, 40))
def test_equal_load_uses_all_addresses(addresses: int, chance: float, rounds: int) -> None:
    """Calls one after another, and calls that stay in flight together."""
    found, _ = balance(addresses, chance=chance)
    lone = Counter[int]()
    for _ in range(rounds * addresses):
        sent = found.choose("m")
        lone[sent.address] += 1
        answer(found, sent)
    assert set(lone.values()) == {rounds}
    assert len(lone) == addresses
    for _ in range(rounds * addresses):
        found.choose("m")
    assert found.outstanding == (rounds,) * addresses


def test_a_failed_address_is_left_out_for_a_growing_time() -> None:
    found, clock = balance(2)
    pauses = list[float]()
    while len(pauses) < 8:
        sent = found.choose("m")
        if sent.address == 1:
            answer(found, sent)
            clock.now += 0.01
            continue
        fail(found, sent, ConnectionFailed("x"))
        pauses.append(found.out_until(0, "m") - clock.now)
        assert found.out_until(1, "m") < clock.now
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])


def test_one_call_tries_an_address_after_each_pause() -> None:
    found, clock = balance(2)
    fail(found, found.choose("m"), ConnectionFailed("x"))
    assert [found.choose("m").address for _ in range(3)] == [1, 1, 1]
    clock.now += 0.2
    trial = found.choose("m")
    assert trial.address == 0
    assert [found.choose("m").address for _ in range(3)] == [1, 1, 1]
    assert answer(found, trial)
    assert [found.choose("m").address for _ in range(3)] == [0, 0, 0]


def test_calls_that_fail_together_count_once_and_older_answers_restore_nothing() -> None:
    found, clock = balance(2)
    sent = [found.choose("m") for _ in range(20)]
    lost = [each for each in sent if each.address == 0]
    for each in lost[1:]:
        fail(found, each, ConnectionFailed("x"))
    assert found.out_until(0, "m") == pytest.approx(clock.now + 0.2)
    assert not answer(found, lost[0])
    assert found.is_out(0, "m")


def test_a_model_is_left_out_alone() -> None:
    found, clock = balance(2)
    fail(found, found.choose("m"), RELOADED)
    assert found.is_out(0, "m")
    assert not found.is_out(0, "other")
    assert not found.is_out(0, None)
    clock.now += 0.2
    assert not found.is_out(0, "m")


def test_a_model_that_is_not_loaded_is_left_out_alone() -> None:
    found, _ = balance(2)
    fail(found, found.choose("m"), NotFound("Request for unknown model: 'm' is not found"))
    assert found.is_out(0, "m")
    assert not found.is_out(0, "other")
    fail(found, found.send(1, "m"), NotFound("there is no task 'x'"))
    assert not found.is_out(1, "m")


def test_a_server_that_refuses_a_model_can_be_reached() -> None:
    found, clock = balance(2)
    fail(found, found.choose("m"), ConnectionFailed("x"))
    clock.now += 0.2
    trial = found.send(0, "m")
    assert found.failed(trial, RELOADED)
    assert not found.is_out(0, "other")
    assert found.is_out(0, "m")


@pytest.mark.parametrize(
    "message",
    [
        "the deadline of 50 ms passed before an answer",
        "the model's queue is full",
        "[request id: 7] Exceeds maximum queue size",
        "Request timeout expired",
    ],
)
def test_a_busy_model_stays_in(message: str) -> None:
    found, _ = balance(2)
    fail(found, found.choose("m"), Unavailable(message))
    assert not found.is_out(0, "m")
    assert found.choose("m", {1}).address == 0
    assert found.choose("m", {0}).address == 1


def test_a_server_that_answers_nothing_during_a_timeout_is_left_out() -> None:
    found, _ = balance(2)
    slow, other, quick = found.choose("m"), found.choose("m"), found.choose("m")
    assert (slow.address, other.address, quick.address) == (0, 1, 0)
    answer(found, quick)
    fail(found, slow, DeadlineExceeded("x"))
    fail(found, other, DeadlineExceeded("x"))
    assert [found.is_out(address, "m") for address in range(2)] == [False, True]


def test_of_addresses_that_are_all_out_the_next_one_is_tried() -> None:
    found, clock = balance(3)
    for _ in range(3):
        fail(found, found.choose("m"), ConnectionFailed("x"))
        clock.now += 0.01
    assert all(found.is_out(address, "m") for address in range(3))
    assert [found.choose("m").address for _ in range(4)] == [0, 1, 2, 0]
    assert found.choose("m", {0, 1}).address == 2


def test_a_retry_goes_to_a_server_that_the_call_has_not_tried_however_busy_it_is() -> None:
    routes = Routes(2, 3, lambda: None)
    for _ in range(3):
        routes.send(1, "m")
    route = routes.call("m", 10)
    first = route.begin()
    assert first.address == 0
    assert route.pause_s(first, Unavailable("the model's queue is full")) == 0
    routes.ended(first)
    assert route.begin().address == 1
