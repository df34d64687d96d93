"""The service on a decoder whose answers are known: who gets which tokens, who leaves when, and who is harmed."""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from testing.waiting import until
from tests.flover.served.serving import (
    EOS,
    MAX_LENGTH,
    FakePrompt,
    RunningService,
    ScriptedMixedRunner,
    ScriptedRunner,
    greedy,
    running,
)
from tidal.errors import Cancelled, Internal, InvalidArgument, TidalError, Unavailable


class Gate:
    """Lets passes of a kind wait, from number `first` on, until each is let through or the gate is open."""

    def __init__(self, kind: str, first: int = 0) -> None:
        self._kind, self._first = kind, first
        self._passes = threading.Semaphore(0)
        self._opened = threading.Event()
        self.reached = -1

    def __call__(self, kind: str, number: int) -> None:
        if kind == self._kind and number >= self._first and not self._opened.is_set():
            self.reached = number
            assert self._passes.acquire(timeout=20)

    def let(self, count: int = 1) -> None:
        for _ in range(count):
            self._passes.release()

    def at(self, number: int) -> bool:
        return until(lambda: self.reached == number, 5)

    def open(self) -> None:
        self._opened.set()
        self.let(1000)


def delay_pass(_kind: str, _number: int) -> None:
    """For `ScriptedRunner.before`: time for others to do something."""
    time.sleep(0.001)


def prompts(count: int, seed: int) -> list[list[int]]:
    luck = random.Random(seed)
    return [[luck.randrange(EOS) for _ in range(luck.randint(1, 40))] for _ in range(count)]


class TestTokens:
    @pytest.mark.parametrize(("shuffle", "random_moves"), [(True, False), (False, False), (True, True)])
    @pytest.mark.parametrize("made", [ScriptedRunner, ScriptedMixedRunner])
    def test_arrivals_lengths_and_withdrawals_at_random(
        self, tmp_path: Path, made: type[ScriptedRunner], shuffle: bool, random_moves: bool
    ) -> None:
        luck, decoder = random.Random(1), made(5)
        decoder.before = delay_pass
        with running(tmp_path, decoder, shuffle=shuffle, random_moves=random_moves) as service:
            asked = []
            for prompt in prompts(64, 2):
                request = FakePrompt(prompt, stream=luck.random() < 0.5, max_tokens=luck.randint(1, 30))
                service.ask(request)
                asked.append((prompt, request))
                time.sleep(luck.random() * 0.004)
                if luck.random() < 0.3:
                    luck.choice(asked[-4:])[1].withdrawn = True
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

    def test_a_text_comes_in_parts_and_as_a_whole(self, tmp_path: Path) -> None:
        decoder = ScriptedRunner()
        decoder.before = delay_pass
        with running(tmp_path, decoder) as service:
            whole, streamed = FakePrompt("naïve", max_tokens=20), FakePrompt("naïve", stream=True, max_tokens=20)
            service.ask(whole, streamed)
            tokens = greedy(list(_bytes_of(service, "naïve")), 20)
            assert whole.tokens() == streamed.tokens() == tokens
            assert not whole.parts
            assert len(streamed.parts) > 1
            assert whole.text() == streamed.text() != ""
            assert all(set(part) == {"index", "text_output", "token_ids"} for part in streamed.parts)
            assert all(part["text_output"][0] for part in streamed.parts)

    def test_only_what_is_wanted_is_sent(self, tmp_path: Path) -> None:
        with running(tmp_path) as service:
            request = FakePrompt([1, 2], stream=True, max_tokens=6, wanted=frozenset({"token_ids"}))
            service.ask(request)
            assert request.tokens() == greedy([1, 2], 6)
            assert all(set(part) == {"token_ids"} for part in request.parts)

    def test_a_stop_ends_the_text_before_it(self, tmp_path: Path) -> None:
        with running(tmp_path) as service:
            plain = FakePrompt([7, 8, 10], max_tokens=30)
            service.ask(plain)
            text = plain.text()
            place = next(at for at in range(3, len(text) - 2) if text.find(text[at : at + 2]) == at)
            for stop in (text[place : place + 2], f'["§§", {json.dumps(text[place : place + 2])}]'):
                request = FakePrompt([7, 8, 10], stream=True, max_tokens=30, stop=stop)
                service.ask(request)
                assert request.text() == text[:place]
                assert request.finish() == "stop"
                assert request.tokens() == plain.tokens()[: len(request.tokens())]

    def test_a_generation_ends_where_its_slot_does(self, tmp_path: Path) -> None:
        with running(tmp_path) as service:
            prompt = [3] * (MAX_LENGTH - 2)
            request = FakePrompt(prompt, max_tokens=1000)
            service.ask(request)
            assert request.tokens() == greedy(prompt, 2)

    def test_sampling_by_seed_does_not_depend_on_company(self, tmp_path: Path) -> None:
        with running(tmp_path, ScriptedRunner(8)) as service:
            alone = FakePrompt([5, 6], seed=3, top_p=0.9, max_tokens=20)
            service.ask(alone)
            expected = alone.tokens()
            assert expected != greedy([5, 6], 20)
            again = FakePrompt([5, 6], seed=3, top_p=0.9, max_tokens=20)
            service.ask(*(FakePrompt([number], max_tokens=30) for number in range(4)), again)
            assert again.tokens() == expected


class TestIterations:
    def test_a_newcomer_joins_the_next_step_and_one_that_ends_leaves_with_it(self, tmp_path: Path) -> None:
        gate, decoder = Gate("decode"), ScriptedRunner(4)
        decoder.before = gate
        with running(tmp_path, decoder) as service:
            first = FakePrompt([1], max_tokens=6)
            service.ask(first)
            assert gate.at(0)
            second = FakePrompt([2], max_tokens=2)
            assert service.arrives(second)
            gate.let()
            assert gate.at(1)  # the second's prompt was read after step 0, and it takes part in this one
            begin, end = decoder.decodes[1]
            assert end - begin == 2
            gate.let()
            assert second.tokens() == greedy([2], 2)
            assert gate.at(2)
            begin, end = decoder.decodes[2]
            assert end - begin == 1
            gate.open()
            assert first.tokens() == greedy([1], 6)

    def test_one_that_is_withdrawn_takes_part_in_one_more_step_at_most(self, tmp_path: Path) -> None:
        gate, decoder = Gate("decode"), ScriptedRunner(1)
        decoder.before = gate
        with running(tmp_path, decoder) as service:
            gone, waiting = FakePrompt([1], max_tokens=40, stream=True), FakePrompt([4], max_tokens=3)
            service.ask(gone)
            assert gate.at(0)
            assert service.arrives(waiting)
            gone.withdrawn = True
            gate.let()  # the client went in step 0: it is asked about beside step 1
            assert gate.at(1)
            assert until(lambda: gone.cancel_seen, 5)
            gate.let()
            assert until(lambda: gone.error is not None, 5)
            assert isinstance(gone.error, Cancelled)
            assert gate.at(2)  # of the one that waited: the only slot was free
            assert sum(part["token_ids"].size for part in gone.parts) <= 3  # of its prompt, and of steps 0 and 1
            gate.open()
            assert waiting.tokens() == greedy([4], 3)
            assert service.counts("generations_total", 1, outcome="cancelled")

    def test_prompts_are_read_in_chunks_beside_steps(self, tmp_path: Path) -> None:
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
            assert decoder.chunks == [(0, 1), (0, 16), (16, 32), (32, 40)]

    def test_prompts_are_read_in_the_passes_of_others(self, tmp_path: Path) -> None:
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
            assert decoder.passes == [(slots, [(0, 16)]), (slots, [(16, 32)]), (slots, [(32, 40)])]
            # Each such pass is a step of the first text, and nothing else is.
            assert len(decoder.passes) + len(decoder.decodes) == 59
            assert service.metric("step_seconds_count") == 59
            assert service.metric("prompt_tokens_total") == 41

    def test_prompts_that_come_together_are_read_together(self, tmp_path: Path) -> None:
        decoder = ScriptedMixedRunner(4)
        with running(tmp_path, decoder) as service:
            gate = Gate("prefill", 0)
            decoder.before = gate
            before = FakePrompt([3], max_tokens=1)
            service.ask(before)
            assert gate.at(0)
            asked = [FakePrompt([number] * 20, max_tokens=2) for number in range(3)]
            assert service.arrives(*asked)
            gate.open()
            for number, request in enumerate(asked):
                assert request.tokens() == greedy([number] * 20, 2)
            assert decoder.passes == [([], [(0, 20)] * 3)]

    def test_the_longest_wait_is_bounded_by_turns(self, tmp_path: Path) -> None:
        """With a slot for two of many, all get theirs in the order in which they came."""
        with running(tmp_path, ScriptedRunner(2)) as service:
            asked = [FakePrompt([number], max_tokens=4) for number in range(12)]
            service.ask(*asked)
            for request in asked:
                request.wait()
            assert service.metric("queue_seconds_count") == 12


class TestFailures:
    def test_a_pass_that_fails_harms_those_in_it(self, tmp_path: Path) -> None:
        decoder = ScriptedRunner(2)

        def fail(kind: str, number: int) -> None:
            if (kind, number) in (("decode", 2), ("prefill", 3)):
                raise RuntimeError("no memory")

        decoder.before = fail
        with running(tmp_path, decoder) as service:
            one, two = FakePrompt([1], max_tokens=9), FakePrompt([2], max_tokens=9)
            after = [FakePrompt([3], max_tokens=9), FakePrompt([4], max_tokens=9)]
            service.ask(one, two, *after)
            for request in (one, two, after[1]):
                with pytest.raises(Internal, match="generating failed: no memory"):
                    request.wait()
            assert after[0].tokens() == greedy([3], 9)
            assert service.counts("generations_total", 3, outcome="failed")

    def test_a_pass_of_prompts_and_a_step_that_fails_harms_whose_fault_it_is(self, tmp_path: Path) -> None:
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

    def test_undefined_logits_fail_their_own_request(self, tmp_path: Path) -> None:
        decoder = ScriptedRunner(3)
        decoder.undefined_for = lambda history: history[0] == 9 and len(history) == 4
        with running(tmp_path, decoder) as service:
            asked = {number: FakePrompt([number], max_tokens=12) for number in (8, 9, 10)}
            service.ask(*asked.values())
            with pytest.raises(Internal, match="NaN or infinite logits"):
                asked[9].wait()
            for number in (8, 10):
                assert asked[number].tokens() == greedy([number], 12)

    def test_a_service_that_fails_is_followed_by_another(self, tmp_path: Path) -> None:
        with running(tmp_path, ScriptedRunner(2)) as service:
            before = FakePrompt([1], max_tokens=50, stream=True)

            def raise_(*_args: object) -> None:
                raise KeyError("a defect")

            before.progressed = raise_  # type: ignore[method-assign]
            service.ask(before)
            with pytest.raises(Internal, match="a defect"):
                before.wait()
            assert until(lambda: _served(service, [2]))

    def test_a_late_one_is_refused_and_one_that_got_late_leaves(self, tmp_path: Path) -> None:
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

    def test_open_requests_are_marked_as_making_progress(self, tmp_path: Path) -> None:
        with running(tmp_path, ScriptedRunner(1)) as service:
            running_, waiting = FakePrompt([1], max_tokens=50), FakePrompt([2], max_tokens=2)
            service.ask(running_, waiting)
            waiting.wait()
            assert running_.progress
            assert waiting.progress

    def test_a_thousand_withdrawals_leave_no_slot_taken(self, tmp_path: Path) -> None:
        luck, decoder = random.Random(4), ScriptedRunner(8)
        with running(tmp_path, decoder, random_moves=True) as service:
            asked: list[FakePrompt] = []
            while sum(request.withdrawn for request in asked) < 1000:
                fresh = [FakePrompt([luck.randrange(EOS)] * luck.randint(1, 30), max_tokens=30) for _ in range(8)]
                service.ask(*fresh)
                asked += fresh
                for request in luck.sample(asked[-24:], min(8, len(asked))):
                    request.withdrawn = True
            for request in asked:
                try:
                    request.wait()
                except TidalError as error:
                    assert isinstance(error, Cancelled)
            assert service.counts("taken_slots", 0)
            ended = sum(
                service.metric("generations_total", outcome=outcome) for outcome in ("eos", "length", "cancelled")
            )
            assert ended == len(asked)


BAD = {
    "the request has neither text_input nor input_ids": FakePrompt(None),
    "both text_input and input_ids": FakePrompt(
        None, inputs={"text_input": np.array([b"a"], object), "input_ids": np.array([1])}
    ),
    "text_input row 0 is empty": FakePrompt("  "),
    "has 70 tokens; this model reads at most 63": FakePrompt("x" * 70),
    "is not valid UTF-8 at byte 1": FakePrompt(None, inputs={"text_input": np.array([b"a\xff"], object)}),
    r"input_ids has shape \[0\]; accepted is \[tokens\], 1 to 63": FakePrompt([]),
    r"input_ids has shape \[64\]": FakePrompt([1] * 64),
    "input_ids has the id 257; accepted are 0 to 256": FakePrompt([1, 257]),
    "has the id -1": FakePrompt([-1]),
    r"stream has shape \[2\]; accepted is \[1\]": FakePrompt(
        None, inputs={"input_ids": np.array([1]), "stream": np.array([True, False])}
    ),
    "unknown task 'x': the model has no tasks": FakePrompt([1], task="x"),
}


@pytest.mark.parametrize("said", BAD)
def test_a_bad_request_is_refused_alone(tmp_path: Path, said: str) -> None:
    with running(tmp_path) as service:
        good = FakePrompt([5], max_tokens=9)
        service.ask(good, BAD[said])
        with pytest.raises(InvalidArgument, match=said):
            BAD[said].wait()
        assert good.tokens() == greedy([5], 9)
        assert service.counts("refused_requests_total", 1)


def test_the_cache_is_checked_when_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidal.flover.service._IDLE_CHECK_S", 0.05)
    with running(tmp_path, decoder := ScriptedRunner()) as service:
        request = FakePrompt([1], max_tokens=3)
        service.ask(request)
        request.wait()
        assert until(lambda: decoder.checks == 1, 5)
        time.sleep(0.2)
        assert decoder.checks == 1


def _served(service: RunningService, prompt: list[int]) -> bool:
    """Whether a service answers; while none runs it refuses."""
    request = FakePrompt(prompt, max_tokens=9)
    service.ask(request)
    try:
        return request.tokens() == greedy(prompt, 9)
    except Unavailable:
        return False


def _bytes_of(service: RunningService, text: str) -> list[int]:
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return [alphabet.index(sign) for piece, _ in level.pre_tokenize_str(text) for sign in piece]
