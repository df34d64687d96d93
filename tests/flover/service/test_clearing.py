"""Memory of slots is cleared in parts beside decode steps, before the first chunk of a prompt."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.flover.service.runners import MAX_LENGTH, Gate, ScriptedMixedRunner, greedy
from tests.flover.service.running import FakePrompt, RunningService, running
from tests.flover.service.test_preemption import answers
from tidal.errors import Internal
from tidal.flover.policies.pages import SlotPages, TokenRuns

PARTS, PART = 5, 1 << 21


class ClearedRunner(ScriptedMixedRunner):
    """A runner whose slots are committed as a whole; a part takes longer to clear than a step allows.

    Attributes:
        cleared: Bytes that were cleared of each slot before it had tokens.
        events: Slots of parts that were cleared, and -1 for each pass that decodes.
        clearing: Called before a part is cleared; may raise.
    """

    pages = SlotPages((TokenRuns(1, 1, PARTS * PART - 100),), at_once=True)

    def __init__(self, slots: int = 4) -> None:
        super().__init__(slots)
        self.budget = slots * self.pages.bytes(MAX_LENGTH)
        self.cleared, self.events = [0] * slots, list[int]()
        self.clearing = lambda: None

    def clear(self, slot: int, begin: int, end: int) -> None:
        with self._exclusive():
            self.clearing()
            assert (self.memory[slot] == -1).all()
            assert begin == self.cleared[slot] < end <= begin + PART
            self.cleared[slot] = end
            self.events.append(slot)
            time.sleep(0.006)

    def mixed(self, slots: np.ndarray, *rest: Any) -> Any:
        self.events += [-1] * bool(len(slots))
        return super().mixed(slots, *rest)

    def decode(self, *arguments: Any) -> Any:
        self.events.append(-1)
        return super().decode(*arguments)


def ask_beside_a_stream(service: RunningService, decoder: ClearedRunner, **options: Any) -> FakePrompt:
    """Ask for a prompt of 20 tokens while another text is generated, and let both end."""
    gate = Gate("decode", 3)
    decoder.before = gate
    stream, prompt = FakePrompt([1], max_tokens=50), FakePrompt([2] * 20, max_tokens=3, **options)
    service.ask(stream)
    assert gate.at(3)
    assert not any(decoder.cleared)  # nothing ran, so the pass has it cleared
    assert service.arrives(prompt)
    gate.open()
    assert stream.tokens() == greedy([1], 50)
    return prompt


@pytest.mark.parametrize("beams", [1, 2])
def test_a_slot_is_cleared_in_parts_beside_a_stream(tmp_path: Path, beams: int) -> None:
    decoder = ClearedRunner(4)
    with running(tmp_path, decoder) as service:
        prompt = ask_beside_a_stream(service, decoder, **({"num_beams": beams} if beams > 1 else {}))
        assert len(prompt.tokens()) == 3
        assert prompt.tokens() == greedy([2] * 20, 3) or beams > 1
        parts = [slot for slot in decoder.events if slot >= 0]
        assert len(parts) == beams * PARTS
        assert len(set(parts)) == beams
        assert all(size == decoder.pages.bytes(1) for size in decoder.cleared if size)
        # At most one part between two tokens of the stream, and no chunk before the last one.
        assert all(-1 in pair for pair in zip(decoder.events, decoder.events[1:], strict=False))


def test_a_failure_to_clear_fails_its_request_alone(tmp_path: Path) -> None:
    decoder = ClearedRunner(4)

    def fail() -> None:
        if any(decoder.cleared):
            raise RuntimeError("no memory")

    decoder.clearing = fail
    with running(tmp_path, decoder) as service:
        prompt = ask_beside_a_stream(service, decoder)
        with pytest.raises(Internal, match="generating failed: no memory"):
            prompt.wait()


@pytest.mark.parametrize("random_moves", [False, True])
def test_answers_are_those_without_clearing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, random_moves: bool
) -> None:
    """Random arrivals, samplers, grammars, beams and cancellations; the runner checks that cleared slots are empty."""
    monkeypatch.setattr("tidal.flover.policies.scheduler._START_TOKENS", 1)  # most prompts come beside a step
    decoder = ClearedRunner(12)
    found, _ = answers(tmp_path / "cleared", decoder, 1, random_moves=random_moves)
    expected, _ = answers(tmp_path / "plain", ScriptedMixedRunner(12), 1, random_moves=random_moves)
    assert found == expected
    assert any(decoder.cleared) or random_moves  # which write to all slots soon
