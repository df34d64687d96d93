"""Failures, deadlines and cancellations in the `flover` service affect only the requests concerned."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from testing.waiting import until
from tests.flover.service.runners import EOS, Gate, ScriptedMixedRunner, ScriptedRunner, greedy
from tests.flover.service.running import FakePrompt, RunningService, running
from tidal.errors import Cancelled, Internal, TidalError, Unavailable


def test_a_failed_pass_fails_the_requests_in_it(tmp_path: Path) -> None:
    gate, decoder = Gate("prefill"), ScriptedRunner(2)

    def fail(kind: str, number: int) -> None:
        gate(kind, number)
        if (kind, number) in (("decode", 2), ("prefill", 3)):
            raise RuntimeError("no memory")

    decoder.before = fail
    with running(tmp_path, decoder) as service:
        one, two = FakePrompt([1], max_tokens=9), FakePrompt([2], max_tokens=9)
        after = [FakePrompt([3], max_tokens=9), FakePrompt([4], max_tokens=9)]
        service.ask(one)
        assert gate.at(0)
        assert service.arrives(two, *after)
        gate.open()
        for request in (one, two, after[1]):
            with pytest.raises(Internal, match="generating failed: no memory"):
                request.wait()
        assert after[0].tokens() == greedy([3], 9)
        assert service.counts("generations_total", 3, outcome="failed")


def test_a_failed_mixed_pass_fails_only_the_request_that_caused_it(tmp_path: Path) -> None:
    decoder = ScriptedMixedRunner(3)

    def fail(kind: str, number: int) -> None:
        if kind == "mixed" or (kind, number) == ("prefill", 1):
            raise RuntimeError("no memory")

    decoder.before = fail
    with running(tmp_path, decoder) as service:
        asked = [FakePrompt([number], max_tokens=9) for number in range(3)]
        service.ask(*asked)
        with pytest.raises(Internal, match="generating failed: no memory"):
            asked[1].wait()
        for number in (0, 2):
            assert asked[number].tokens() == greedy([number], 9)
        assert service.counts("generations_total", 1, outcome="failed")


def test_undefined_logits_fail_their_own_request(tmp_path: Path) -> None:
    decoder = ScriptedRunner(3)
    decoder.undefined_for = lambda history: history[0] == 9 and len(history) == 4
    with running(tmp_path, decoder) as service:
        asked = {number: FakePrompt([number], max_tokens=12) for number in (8, 9, 10)}
        service.ask(*asked.values())
        with pytest.raises(Internal, match="NaN or infinite logits"):
            asked[9].wait()
        for number in (8, 10):
            assert asked[number].tokens() == greedy([number], 12)


def test_a_failed_service_is_replaced(tmp_path: Path) -> None:
    with running(tmp_path, ScriptedRunner(2)) as service:
        before = FakePrompt([1], max_tokens=50, stream=True)

        def raise_(*_args: object) -> None:
            raise KeyError("a defect")

        before.progressed = raise_  # type: ignore[method-assign]
        service.ask(before)
        with pytest.raises(Internal, match="a defect"):
            before.wait()
        assert until(lambda: _served(service, [2]))


def test_requests_past_their_deadline_are_refused_or_ended(tmp_path: Path) -> None:
    gate, decoder = Gate("decode"), ScriptedRunner(1)
    decoder.before = gate
    with running(tmp_path, decoder) as service:
        first = FakePrompt([1], max_tokens=9, latency_ms=10_000)
        service.ask(first)
        assert gate.at(0)
        late = FakePrompt([2], max_tokens=9, latency_ms=1)
        assert service.arrives(late)
        time.sleep(0.01)
        first.fail(Unavailable("its deadline passed"))  # as the boundary does
        gate.open()
        with pytest.raises(Unavailable, match="deadline of 1 ms cannot be met"):
            late.wait()
        assert service.counts("generations_total", 1, outcome="failed")
        assert service.counts("generations_total", 1, outcome="late")


def test_open_requests_are_marked_as_making_progress(tmp_path: Path) -> None:
    with running(tmp_path, ScriptedRunner(1)) as service:
        running_, waiting = FakePrompt([1], max_tokens=50), FakePrompt([2], max_tokens=2)
        service.ask(running_, waiting)
        waiting.wait()
        assert running_.progress
        assert waiting.progress


def test_many_cancellations_free_all_slots(tmp_path: Path) -> None:
    rng, decoder = random.Random(4), ScriptedRunner(8)
    with running(tmp_path, decoder, random_moves=True) as service:
        asked: list[FakePrompt] = []
        while sum(request.withdrawn for request in asked) < 300:
            fresh = [FakePrompt([rng.randrange(EOS)] * rng.randint(1, 30), max_tokens=30) for _ in range(8)]
            service.ask(*fresh)
            asked += fresh
            for request in rng.sample(asked[-24:], min(8, len(asked))):
                request.withdrawn = True
        for request in asked:
            try:
                request.wait()
            except TidalError as error:
                assert isinstance(error, Cancelled)
        assert service.counts("taken_slots", 0)
        ended = sum(service.metric("generations_total", outcome=outcome) for outcome in ("eos", "length", "cancelled"))
        assert ended == len(asked)


def _served(service: RunningService, prompt: list[int]) -> bool:
    """Whether the service answers; it refuses requests while it restarts."""
    request = FakePrompt(prompt, max_tokens=9)
    service.ask(request)
    try:
        return request.tokens() == greedy(prompt, 9)
    except Unavailable:
        return False
