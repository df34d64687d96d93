"""Iterations of the `flover` service: when requests join, leave and are prefilled."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from testing.waiting import until
from tests.flover.service.runners import Gate, ScriptedMixedRunner, ScriptedRunner, greedy
from tests.flover.service.running import FakePrompt, RunningService, running
from tidal.errors import Cancelled


def answer_together(service: RunningService, decoder: ScriptedMixedRunner, *, prompts: int, max_tokens: int) -> None:
    """Let prompts of 20 tokens arrive while another one is prefilled, and check their answers."""
    gate = Gate("prefill", 0)
    decoder.before = gate
    service.ask(FakePrompt([3], max_tokens=1))
    assert gate.at(0)
    asked = [FakePrompt([number] * 20, max_tokens=max_tokens) for number in range(prompts)]
    assert service.arrives(*asked)
    gate.open()
    for number, request in enumerate(asked):
        assert request.tokens() == greedy([number] * 20, max_tokens)


def test_a_new_request_joins_the_next_step_and_a_finished_one_leaves(tmp_path: Path) -> None:
    gate, decoder = Gate("decode"), ScriptedRunner(4)
    decoder.before = gate
    with running(tmp_path, decoder) as service:
        first = FakePrompt([1], max_tokens=6)
        service.ask(first)
        assert gate.at(0)
        second = FakePrompt([2], max_tokens=2)
        assert service.arrives(second)
        gate.let()
        assert gate.at(1)  # the second prompt was prefilled after step 0 and is part of this step
        begin, end = decoder.decodes[1]
        assert end - begin == 2
        gate.let()
        assert second.tokens() == greedy([2], 2)
        assert gate.at(2)
        begin, end = decoder.decodes[2]
        assert end - begin == 1
        gate.open()
        assert first.tokens() == greedy([1], 6)


def test_a_cancelled_request_runs_one_more_step_at_most(tmp_path: Path) -> None:
    gate, decoder = Gate("decode"), ScriptedRunner(1)
    decoder.before = gate
    with running(tmp_path, decoder) as service:
        cancelled, waiting = FakePrompt([1], max_tokens=40, stream=True), FakePrompt([4], max_tokens=3)
        service.ask(cancelled)
        assert gate.at(0)
        assert service.arrives(waiting)
        cancelled.withdrawn = True
        gate.let()  # the client cancelled in step 0: the service checks for it during step 1
        assert gate.at(1)
        assert until(lambda: cancelled.cancel_seen)
        gate.let()
        assert until(lambda: cancelled.error is not None)
        assert isinstance(cancelled.error, Cancelled)
        assert gate.at(2)  # of the waiting request: the only slot was free
        assert sum(part["token_ids"].size for part in cancelled.parts) <= 3  # from its prefill and from steps 0 and 1
        gate.open()
        assert waiting.tokens() == greedy([4], 3)
        assert service.counts("generations_total", 1, outcome="cancelled")


def assert_in_small_chunks(chunks: Sequence[tuple[int, int]], tokens: int) -> None:
    """Check that chunks (start, end) cover a prompt; their sizes depend on how long steps take."""
    assert [0, *(end for _, end in chunks)] == [*(start for start, _ in chunks), tokens]
    assert all(end - start <= 16 for start, end in chunks)


def test_prompts_are_prefilled_in_chunks_between_steps(tmp_path: Path) -> None:
    decoder = ScriptedRunner(4)
    with running(tmp_path, decoder, prefill_share=0.1) as service:
        first = FakePrompt([1], max_tokens=60)
        gate = Gate("decode", 3)
        decoder.before = gate
        service.ask(first)
        assert gate.at(3)
        assert service.arrives(FakePrompt([2] * 40, max_tokens=1))
        gate.open()
        first.wait()
        assert decoder.chunks[0] == (0, 1)
        assert_in_small_chunks(decoder.chunks[1:], 40)


def test_chunks_of_prompts_share_the_passes_of_decode_steps(tmp_path: Path) -> None:
    decoder = ScriptedMixedRunner(4)
    with running(tmp_path, decoder, prefill_share=0.1) as service:
        first, second = FakePrompt([1], max_tokens=60), FakePrompt([2] * 40, max_tokens=3)
        gate = Gate("decode", 3)
        decoder.before = gate
        service.ask(first)
        assert gate.at(3)
        assert service.arrives(second)
        gate.open()
        assert first.tokens() == greedy([1], 60)
        assert second.tokens() == greedy([2] * 40, 3)
        slots = decoder.passes[0][0]
        assert len(slots) == 1
        assert all(rows == slots for rows, _ in decoder.passes)
        assert_in_small_chunks([chunk for _, (chunk,) in decoder.passes], 40)
        # Each mixed pass is also a decode step of the first text.
        assert len(decoder.passes) + len(decoder.decodes) == 59
        assert service.metric("step_seconds_count") == 59
        assert service.metric("prompt_tokens_total") == 41


def test_prompts_that_arrive_together_are_prefilled_together(tmp_path: Path) -> None:
    decoder = ScriptedMixedRunner(4)
    with running(tmp_path, decoder) as service:
        answer_together(service, decoder, prompts=3, max_tokens=2)
        assert decoder.passes == [([], [(0, 20)] * 3)]


def test_prompts_that_arrive_together_do_not_wait_for_steps_of_the_first_ones(tmp_path: Path) -> None:
    """20 prompts of 20 tokens: 13 together have 256 tokens, and the others come in the very next pass."""
    decoder = ScriptedMixedRunner(20)
    with running(tmp_path, decoder, prefill_share=0.01) as service:
        answer_together(service, decoder, prompts=20, max_tokens=4)
        assert [(len(slots), len(chunks)) for slots, chunks in decoder.passes] == [(0, 13), (13, 7)]


def test_more_requests_than_slots_are_all_served(tmp_path: Path) -> None:
    with running(tmp_path, ScriptedRunner(2)) as service:
        asked = [FakePrompt([number], max_tokens=4) for number in range(12)]
        service.ask(*asked)
        for request in asked:
            request.wait()
        assert service.metric("queue_seconds_count") == 12


def test_the_cache_is_checked_once_while_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidal.flover.service._IDLE_CHECK_S", 0.05)
    with running(tmp_path, decoder := ScriptedRunner()) as service:
        request = FakePrompt([1], max_tokens=3)
        service.ask(request)
        request.wait()
        assert until(lambda: decoder.checks == 1)
        time.sleep(0.2)
        assert decoder.checks == 1
