"""Tokens and texts of the `flover` service over a runner with known logits."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from testing.decoders import byte_ids
from tests.flover.service.runners import EOS, MAX_LENGTH, ScriptedMixedRunner, ScriptedRunner, delay_pass, greedy
from tests.flover.service.running import FakePrompt, running
from tidal.errors import Cancelled


def prompts(count: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(EOS) for _ in range(rng.randint(1, 40))] for _ in range(count)]


@pytest.mark.parametrize(("shuffle", "random_moves"), [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize("made", [ScriptedRunner, ScriptedMixedRunner])
def test_tokens_do_not_depend_on_arrivals_lengths_and_cancellations(
    tmp_path: Path, made: type[ScriptedRunner], shuffle: bool, random_moves: bool
) -> None:
    rng, decoder = random.Random(1), made(5)
    decoder.before = delay_pass
    with running(tmp_path, decoder, shuffle=shuffle, random_moves=random_moves) as service:
        asked = []
        for prompt in prompts(64, 2):
            request = FakePrompt(prompt, stream=rng.random() < 0.5, max_tokens=rng.randint(1, 30))
            service.ask(request)
            asked.append((prompt, request))
            time.sleep(rng.random() * 0.004)
            if rng.random() < 0.3:
                rng.choice(asked[-4:])[1].withdrawn = True
        for prompt, request in asked:
            limit = request.options.max_tokens or 0
            expected = greedy(prompt, min(limit, MAX_LENGTH - len(prompt)))
            try:
                assert request.tokens() == expected
            except Cancelled:
                assert request.withdrawn
                got = [token for part in request.parts for token in part["token_ids"].tolist()]
                assert got == expected[: len(got)]
            else:
                assert request.finish() == ("eos" if expected[-1] == EOS else "length")
                assert (request.wait()["prompt_tokens"].item(), request.wait()["generated_tokens"].item()) == (
                    len(prompt),
                    len(expected),
                )
        assert {request.error is None for _, request in asked} == {True, False}
        assert service.metric("fused_generations_bucket", le="1") < service.metric("fused_generations_count")
        assert (service.metric("moved_bytes_total") > 0) is shuffle
    if isinstance(decoder, ScriptedMixedRunner):
        assert any(slots and len(chunks) > 1 for slots, chunks in decoder.passes)


def test_streamed_and_whole_text_are_equal(tmp_path: Path) -> None:
    decoder = ScriptedRunner()
    decoder.before = delay_pass
    with running(tmp_path, decoder) as service:
        whole, streamed = FakePrompt("naïve", max_tokens=20), FakePrompt("naïve", stream=True, max_tokens=20)
        service.ask(whole, streamed)
        tokens = greedy(byte_ids("naïve"), 20)
        assert whole.tokens() == streamed.tokens() == tokens
        assert not whole.parts
        assert streamed.parts
        assert whole.text() == streamed.text() != ""
        assert all(set(part) == {"index", "text_output", "token_ids"} for part in streamed.parts)
        assert all(part["text_output"][0] for part in streamed.parts)


def test_only_requested_outputs_are_sent(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        request = FakePrompt([1, 2], stream=True, max_tokens=6, wanted=frozenset({"token_ids"}))
        service.ask(request)
        assert request.tokens() == greedy([1, 2], 6)
        assert all(set(part) == {"token_ids"} for part in request.parts)


def test_a_stop_string_ends_the_text_before_it(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        plain = FakePrompt([7, 8, 10], max_tokens=30)
        service.ask(plain)
        text = plain.text()
        start = next(at for at in range(3, len(text) - 2) if text.find(text[at : at + 2]) == at)
        for stop in (text[start : start + 2], f'["§§", {json.dumps(text[start : start + 2])}]'):
            request = FakePrompt([7, 8, 10], stream=True, max_tokens=30, stop=stop)
            service.ask(request)
            assert request.text() == text[:start]
            assert request.finish() == "stop"
            assert request.tokens() == plain.tokens()[: len(request.tokens())]


def test_a_generation_ends_when_its_slot_is_full(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        prompt = [3] * (MAX_LENGTH - 2)
        request = FakePrompt(prompt, max_tokens=1000)
        service.ask(request)
        assert request.tokens() == greedy(prompt, 2)


def test_seeded_sampling_does_not_depend_on_other_requests(tmp_path: Path) -> None:
    with running(tmp_path, ScriptedRunner(8)) as service:
        alone = FakePrompt([5, 6], seed=3, top_p=0.9, max_tokens=20)
        service.ask(alone)
        expected = alone.tokens()
        assert expected != greedy([5, 6], 20)
        again = FakePrompt([5, 6], seed=3, top_p=0.9, max_tokens=20)
        service.ask(*(FakePrompt([number], max_tokens=30) for number in range(4)), again)
        assert again.tokens() == expected
