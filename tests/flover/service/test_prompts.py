"""Several prompts and beams per request: the service over a runner with known logits, and over tiny models."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from testing.decoders import byte_ids, tiny_model, tiny_runner
from testing.waiting import until
from tests.flover.generating import generated_by_transformers, searched_by_transformers
from tests.flover.service.runners import (
    EOS,
    MAX_LENGTH,
    VOCABULARY,
    Gate,
    ScriptedRunner,
    delay_pass,
    greedy,
    logits_of,
)
from tests.flover.service.running import FakePrompt, running
from tidal.errors import Cancelled, Internal, InvalidArgument, Unavailable
from tidal.flover.beams import BeamSearch, BeamSettings
from tidal.flover.memory.slots import SlotCopy


def searched(prompt: list[int], count: int, beams: int) -> list[int]:
    """Return the tokens that a beam search over the scripted runner finds."""
    search = BeamSearch(BeamSettings(beams), prompt, count, {EOS}, VOCABULARY)
    while not search.ended:
        texts = search.tokens if search.length else [[]]
        search.advance(torch.from_numpy(np.stack([logits_of((*prompt, *tokens)) for tokens in texts])))
    return list(search.best.tokens)


def random_texts(rng: random.Random, count: int, longest: int) -> list[str]:
    return ["x" + "".join(rng.choices("abc def", k=rng.randint(0, longest - 1))) for _ in range(count)]


class TestPrompts:
    @pytest.mark.parametrize("stream", [False, True])
    def test_each_prompt_gets_the_tokens_that_it_gets_alone(self, tmp_path: Path, stream: bool) -> None:
        texts = ["one", "and two", "three"]
        with running(tmp_path, ScriptedRunner(3)) as service:
            request, single = FakePrompt(texts, stream=stream, max_tokens=20), FakePrompt("and two", max_tokens=20)
            service.ask(request, single)
            assert request.by_prompt() == [greedy(byte_ids(text), 20) for text in texts]
            last = request.wait()
            if stream:
                assert all(part["index"].shape == (1,) for part in request.parts)
                ends = [part for part in (*request.parts, last) if "finish_reason" in part]
                assert sorted(part["index"].item() for part in ends) == [0, 1, 2]
                found = [part["text_output"][0] for part in request.parts if part["index"].item() == 1]
                found += [last["text_output"][0]] if last["index"].item() == 1 else []
                assert b"".join(found).decode() == single.text()
            else:
                assert not request.parts
                assert last["index"].tolist() == [0, 1, 2]
                assert last["text_output"][1].decode() == single.text()
                assert last["prompt_tokens"].tolist() == [len(text) for text in texts]
                assert {*last["finish_reason"]} <= {b"eos", b"length"}

    def test_prompts_with_one_seed_draw_differently(self, tmp_path: Path) -> None:
        with running(tmp_path) as service:
            both = FakePrompt(["same", "same"], seed=7, max_tokens=12)
            alone = [FakePrompt("same", seed=7, max_tokens=12), FakePrompt("same", seed=8, max_tokens=12)]
            service.ask(both, *alone)
            first, second = both.by_prompt()
            assert first != second
            assert [first, second] == [each.tokens() for each in alone]

    def test_a_failed_prompt_fails_its_request_only(self, tmp_path: Path) -> None:
        decoder = ScriptedRunner(4)
        undefined_for = byte_ids("bad")
        decoder.undefined_for = lambda history: list(history[:3]) == undefined_for and len(history) == 6
        decoder.before = delay_pass
        with running(tmp_path, decoder) as service:
            request, other = FakePrompt(["fine", "bad", "good"], max_tokens=40), FakePrompt([4], max_tokens=30)
            service.ask(request, other)
            with pytest.raises(Internal, match="NaN or infinite logits"):
                request.wait()
            assert other.tokens() == greedy([4], 30)
            assert service.counts("generations_total", 3, outcome="failed")

    def test_a_deadline_applies_to_all_prompts(self, tmp_path: Path) -> None:
        with running(tmp_path, ScriptedRunner(3)) as service:
            late = FakePrompt(["a", "b" * 60], max_tokens=9, latency_ms=0.5)
            service.ask(late)
            with pytest.raises(Unavailable, match=r"deadline of 0\.5 ms"):
                late.wait()


class TestBeams:
    def test_prompts_and_beams_among_others(self, tmp_path: Path) -> None:
        """Random requests, of which some are cancelled, in slots that move at random."""
        rng, decoder = random.Random(3), ScriptedRunner(7)
        decoder.before = delay_pass
        with running(tmp_path, decoder, random_moves=True) as service:
            asked = []
            for _ in range(40):
                texts = random_texts(rng, rng.choice((1, 1, 2, 3)), 20)
                beams, count = rng.choice((1, 2, 3, 7 // len(texts))), rng.randint(1, 20)
                beams = min(beams, 7 // len(texts))
                more = {} if beams == 1 else {"num_beams": beams}
                request = FakePrompt(texts, stream=rng.random() < 0.5, max_tokens=count, **more)
                service.ask(request)
                asked.append((texts, beams, count, request))
                time.sleep(rng.random() * 0.004)
                if rng.random() < 0.3:
                    rng.choice(asked[-4:])[-1].withdrawn = True
            for texts, beams, count, request in asked:
                try:
                    found = request.by_prompt()
                except Cancelled:
                    assert request.withdrawn
                    continue
                for text, tokens in zip(texts, found, strict=True):
                    ids = byte_ids(text)
                    most = min(count, MAX_LENGTH - len(ids))
                    assert tokens == (greedy(ids, most) if beams == 1 else searched(ids, most, beams))
            assert {request.error is None for *_, request in asked} == {True, False}
            assert service.metric("copied_slots_total") > 0
            assert service.metric("copied_bytes_total") > service.metric("copied_slots_total")

    def test_each_prompt_gets_one_answer(self, tmp_path: Path) -> None:
        with running(tmp_path) as service:
            request = FakePrompt(["ab", "cd"], stream=True, max_tokens=9, num_beams=2)
            service.ask(request)
            assert request.by_prompt() == [searched(byte_ids(text), 9, 2) for text in ("ab", "cd")]
            assert len(request.parts) == 1
            assert "finish_reason" in request.parts[0]

    def test_a_cancelled_request_frees_all_of_its_slots(self, tmp_path: Path) -> None:
        gate, decoder = Gate("decode"), ScriptedRunner(6)
        decoder.before = gate
        with running(tmp_path, decoder) as service:
            cancelled, waiting = (
                FakePrompt(["ab", "cd"], max_tokens=60, num_beams=3),
                FakePrompt([4], max_tokens=1, num_beams=6),
            )
            service.ask(cancelled)
            assert gate.at(0)
            assert service.arrives(waiting)
            gate.let(3)
            assert gate.at(3)
            assert service.metric("running_slots") == 6
            cancelled.withdrawn = True
            gate.let()
            assert until(lambda: cancelled.cancel_seen)  # in step 3 or 4
            gate.let()
            assert waiting.tokens() == searched([4], 1, 6)  # all slots were free before another step
            assert gate.reached <= 4
            with pytest.raises(Cancelled):
                cancelled.wait()
            gate.open()
            assert service.counts("taken_slots", 0)
            assert service.counts("generations_total", 2, outcome="cancelled")

    @pytest.mark.parametrize("when", [0, 5])
    def test_a_failed_copy_fails_its_own_request(self, tmp_path: Path, when: int) -> None:
        decoder = ScriptedRunner(4)
        copied = decoder.copy_slots
        calls = iter(range(1000))

        def fail(copies: Iterable[SlotCopy], **options: Any) -> int:
            if next(calls) == when:
                raise RuntimeError("no memory")
            return copied(copies, **options)

        decoder.copy_slots = fail  # type: ignore[method-assign]
        with running(tmp_path, decoder) as service:
            bad, good = FakePrompt([9], max_tokens=30, num_beams=3), FakePrompt([8], max_tokens=30)
            service.ask(bad, good)
            with pytest.raises(Internal, match="generating failed: no memory"):
                bad.wait()
            assert good.tokens() == greedy([8], 30)
            after = FakePrompt([9], max_tokens=12, num_beams=3)
            service.ask(after)
            assert after.tokens() == searched([9], 12, 3)

    def test_undefined_logits_fail_their_own_request(self, tmp_path: Path) -> None:
        decoder = ScriptedRunner(4)
        decoder.undefined_for = lambda history: history[0] == 9 and len(history) == 4
        with running(tmp_path, decoder) as service:
            bad, good = FakePrompt([9], max_tokens=12, num_beams=3), FakePrompt([8], max_tokens=12)
            service.ask(bad, good)
            with pytest.raises(Internal, match="NaN or infinite logits"):
                bad.wait()
            assert good.tokens() == greedy([8], 12)


BAD: dict[str, FakePrompt] = {
    r"text_input has shape \[5\]; accepted is \[prompts\], 1 to 4: this model has 4 slots": FakePrompt(["a"] * 5),
    r"text_input has shape \[3\]; accepted is \[prompts\], 1 to 2 of 2 beams each": FakePrompt(["a"] * 3, num_beams=2),
    r"text_input has shape \[0\]": FakePrompt(None, inputs={"text_input": np.array([], object)}),
    "'num_beams': 5 beams need 5 slots; this model has 4": FakePrompt([1], num_beams=5),
    "text_input row 1 is empty": FakePrompt(["a", " ", "b"]),
    "text_input row 2 has 70 tokens; this model reads at most 63": FakePrompt(["a", "b", "x" * 70]),
    "'top_p' cannot be combined with num_beams 2": FakePrompt([1], num_beams=2, top_p=0.5),
    "'temperature' cannot be combined with num_beams 2": FakePrompt([1], num_beams=2, temperature=0.5),
    "'seed' cannot be combined with num_beams 3": FakePrompt([1], num_beams=3, seed=0),
    "'stop' cannot be combined with num_beams 2": FakePrompt([1], num_beams=2, stop="x"),
    "'length_penalty' requires num_beams above 1": FakePrompt([1], length_penalty=2),
    "'early_stopping' requires num_beams above 1": FakePrompt([1], num_beams=1, early_stopping=True),
}


def test_invalid_requests_are_refused_alone(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        for message, bad in BAD.items():
            good = FakePrompt([5], max_tokens=4)
            service.ask(good, bad)
            with pytest.raises(InvalidArgument, match=message):
                bad.wait()
            assert good.tokens() == greedy([5], 4)
        assert service.counts("refused_requests_total", len(BAD))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_tokens_equal_those_of_transformers(tmp_path: Path, family: str) -> None:
    """Beam, greedy and sampled generations together, in slots that move before every step."""
    model, rng = tiny_model(family), random.Random(1)
    settings: list[dict[str, Any]] = [
        {"num_beams": 2},
        {"num_beams": 4, "early_stopping": True, "length_penalty": 1.5},
        {"num_beams": 3, "early_stopping": "never", "repetition_penalty": 1.2},
    ]
    asked = []
    with running(tmp_path, tiny_runner(model, slots=9, max_length=MAX_LENGTH), random_moves=True) as service:
        for number in range(3):
            options = settings[number % 3]
            texts = random_texts(rng, 2, 30)
            asked.append((texts, options, FakePrompt(texts, max_tokens=16, **options)))
            asked.append((texts, {}, FakePrompt(texts, max_tokens=16)))
            cancelled = FakePrompt(texts, max_tokens=30, **options)
            service.ask(asked[-2][-1], FakePrompt([number], max_tokens=16, seed=number), asked[-1][-1], cancelled)
            cancelled.withdrawn = number % 2 == 0
        for texts, options, request in asked:
            found = request.by_prompt()
            for text, tokens in zip(texts, found, strict=True):
                if options:
                    assert tokens == searched_by_transformers(model, byte_ids(text), 16, EOS, **options)
                else:
                    expected = generated_by_transformers(model, np.array(byte_ids(text)), 16)
                    assert tokens == (expected[: expected.index(EOS) + 1] if EOS in expected else expected)
