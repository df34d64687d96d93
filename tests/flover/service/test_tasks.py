"""LoRA tasks of requests in the `flover` service over a runner with known logits, and the memory that tasks take."""

from __future__ import annotations

import random
import time
from pathlib import Path

import numpy as np
import pytest

from testing.decoders import byte_ids
from testing.waiting import until
from tests.flover.service.runners import EOS, Gate, ScriptedRunner, greedy
from tests.flover.service.running import BASE, FakePrompt, running
from tidal.errors import Cancelled, InvalidArgument
from tidal.flover.tasks.folder import FloverProvenance, add_task
from tidal.tasks.folder import remove_task
from tidal.tasks.low_rank import LowRankDelta

BYTES = 4 * (1 * 2 + 6 * 1)


def put(folder: Path, number: int, *, replace: bool = False, name: str | None = None) -> str:
    """Add the task that the scripted runner identifies by this number; return its name."""
    delta = LowRankDelta(np.full((1, 2), number, np.float32), np.ones((6, 1), np.float32), 1.0)
    made = FloverProvenance(source="here")
    return add_task(
        folder / "tasks", name or f"task{number}", {"h.0.attn.c_attn": delta}, BASE, made, replace=replace
    ).name


def test_every_generation_uses_its_own_task(tmp_path: Path) -> None:
    """Random arrivals and lengths, more tasks than fit in memory, and slots that move before every step."""
    rng, decoder = random.Random(1), ScriptedRunner(5)
    names = {number: put(tmp_path, number) for number in range(3)}
    with running(tmp_path, decoder, random_moves=True, task_bytes=2 * BYTES) as service:
        asked = []
        for _ in range(60):
            number, limit = rng.choice((None, 0, 1, 2)), rng.randint(1, 20)
            prompts = [bytes(rng.randrange(97, 123) for _ in range(rng.randint(1, 30))).decode() for _ in range(2)]
            request = FakePrompt(
                prompts, stream=rng.random() < 0.5, max_tokens=limit, task=None if number is None else names[number]
            )
            service.ask(request)
            asked.append((request, prompts, limit, number))
            if rng.random() < 0.2:
                rng.choice(asked[-4:])[0].withdrawn = True
            time.sleep(rng.random() * 0.003)
        for request, prompts, limit, number in asked:
            try:
                found = request.by_prompt()
            except Cancelled:
                assert request.withdrawn
            else:
                assert (number, found) == (number, [greedy(byte_ids(prompt), limit, number) for prompt in prompts])
        assert until(lambda: service.metric("task_evictions_total") > 0)
        assert service.metric("task_budget_bytes") == 2 * BYTES


def test_beams_keep_their_task(tmp_path: Path) -> None:
    name, seen = put(tmp_path, 3), set()
    decoder = ScriptedRunner(4)
    decode = decoder.decode

    def watched(*args, **kwargs):  # type: ignore[no-untyped-def]
        seen.update(args[4])
        return decode(*args, **kwargs)

    decoder.decode = watched  # type: ignore[method-assign]
    with running(tmp_path, decoder) as service:
        request = FakePrompt([5, 6], max_tokens=6, num_beams=3, task=name)
        service.ask(request)
        request.wait()
    assert [task is None for task in seen] == [False]


def test_tasks_are_added_replaced_and_removed_during_generation(tmp_path: Path) -> None:
    """A generation keeps the task that it began with when the task's folder is replaced or removed."""
    old, gate = put(tmp_path, 1), Gate("decode", first=2)
    decoder = ScriptedRunner()
    decoder.before = gate
    with running(tmp_path, decoder) as service:
        service.ask(first := FakePrompt([7], max_tokens=30, task=old))
        assert gate.at(2)
        put(tmp_path, 2, replace=True, name=old)
        new = put(tmp_path, 4)
        assert until(lambda: service.metric("tasks") == 2)
        assert service.arrives(
            second := FakePrompt([7], max_tokens=30, task=old), third := FakePrompt([7], max_tokens=9, task=new)
        )
        gate.let()
        assert gate.at(3)
        remove_task(tmp_path / "tasks", old)
        assert until(lambda: service.metric("tasks") == 1)
        # Both versions of that task are in use and are counted.
        assert until(lambda: service.metric("task_bytes") == 3 * BYTES)
        service.ask(refused := FakePrompt([7], task=old))
        with pytest.raises(InvalidArgument, match=f"unknown task '{old}'"):
            refused.wait()
        gate.open()
        assert first.tokens() == greedy([7], 30, 1)
        assert second.tokens() == greedy([7], 30, 2)
        assert third.tokens() == greedy([7], 9, 4)
        assert until(lambda: service.metric("task_bytes") == BYTES)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("task8", "unknown task 'task8': did you mean 'task1'"),
        ("other", "unknown task 'other': accepted: task1"),
        ("../task1", "unknown task"),
    ],
)
def test_an_unknown_task_is_refused_alone(tmp_path: Path, task: str, message: str) -> None:
    put(tmp_path, 1)
    with running(tmp_path) as service:
        good, bad = FakePrompt([5], max_tokens=9, task="task1"), FakePrompt([5], task=task)
        service.ask(good, bad)
        with pytest.raises(InvalidArgument, match=message):
            bad.wait()
        assert good.tokens() == greedy([5], 9, 1)
        assert service.counts("refused_requests_total", 1)


def test_a_damaged_task_is_refused_in_its_own_requests(tmp_path: Path) -> None:
    file = tmp_path / "tasks" / put(tmp_path, 1) / "task.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"x")
    with running(tmp_path) as service:
        bad, good = FakePrompt([5], task="task1"), FakePrompt([5], max_tokens=9)
        service.ask(bad, good)
        with pytest.raises(InvalidArgument, match=r"task 'task1' is refused: task\.safetensors does not match"):
            bad.wait()
        assert good.tokens() == greedy([5], 9)
        file.write_bytes(content)
        put(tmp_path, 1, replace=True)
        assert until(lambda: _tokens(service, "task1") == greedy([5], 9, 1))


def test_cancelled_late_and_refused_requests_release_their_task(tmp_path: Path) -> None:
    put(tmp_path, 1)
    gate, decoder = Gate("decode", first=1), ScriptedRunner(1)

    def before(kind: str, number: int) -> None:
        gate(kind, number)
        time.sleep(0.002)  # time for the service to check for cancellations

    decoder.before = before
    with running(tmp_path, decoder) as service:
        service.ask(first := FakePrompt([7], max_tokens=50, task="task1"))
        assert gate.at(1)
        waiting = [FakePrompt([EOS - 1] * 20, task="task1", latency_ms=1), FakePrompt([8], max_tokens=50, task="task1")]
        assert service.arrives(*waiting)
        first.withdrawn = waiting[1].withdrawn = True
        time.sleep(0.01)
        gate.open()
        for request in (first, *waiting):
            with pytest.raises(Exception, match=r"cancelled|deadline"):
                request.wait()
        remove_task(tmp_path / "tasks", "task1")
        assert until(lambda: service.metric("tasks") == service.metric("task_bytes") == 0)


def _tokens(service, task: str) -> list[int]:  # type: ignore[no-untyped-def]
    service.ask(request := FakePrompt([5], max_tokens=9, task=task))
    try:
        return request.tokens()
    except InvalidArgument:
        return []
