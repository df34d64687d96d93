"""What requests can say: several texts, log probabilities, ends of texts, chats, guided output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from testing.decoders import byte_ids, byte_tokenizer, tiny_model, tiny_runner
from testing.waiting import until
from tests.flover.generating import generated_by_transformers
from tests.flover.service.runners import EOS, MAX_LENGTH, VOCABULARY, ScriptedRunner, greedy, logits_of
from tests.flover.service.running import FakePrompt, running
from tidal.errors import InvalidArgument
from tidal.flover.sampling import Sampler, SamplingParams, sample_tokens


def sampled(prompt: list[int], count: int, seed: int) -> list[int]:
    """Return the tokens that the scripted runner generates with a seed at temperature 1."""
    history, sampler = list(prompt), Sampler(SamplingParams(seed=seed), np.array(prompt))
    for _ in range(count):
        history.append(int(sample_tokens(logits_of(tuple(history))[None], [sampler])[0]))
        if history[-1] == EOS:
            break
    return history[len(prompt) :]


def mean_logprob(prompt: list[int], tokens: list[int]) -> float:
    histories = [(*prompt, *tokens[:end]) for end in range(len(tokens))]
    logits = torch.from_numpy(np.stack([logits_of(history) for history in histories]))
    return float(torch.log_softmax(logits, -1)[range(len(tokens)), tokens].mean())


def chat(messages: Any, **more: Any) -> FakePrompt:
    inputs = {name: np.array([json.dumps(value).encode()], object) for name, value in more.items() if name == "tools"}
    options = {name: value for name, value in more.items() if name != "tools"}
    return FakePrompt(None, inputs={"messages": np.array([json.dumps(messages).encode()], object), **inputs}, **options)


class TestSeveralTexts:
    @pytest.mark.parametrize("stream", [False, True])
    def test_each_has_its_own_seed(self, tmp_path: Path, stream: bool) -> None:
        with running(tmp_path, ScriptedRunner(8)) as service:
            request = FakePrompt(["ab", "c"], n=3, seed=10, max_tokens=12, stream=stream)
            service.ask(request)
            ids = [byte_ids("ab")] * 3 + [byte_ids("c")] * 3
            assert request.by_prompt() == [sampled(each, 12, 10 + number) for number, each in enumerate(ids)]

    def test_the_best_have_the_highest_mean_log_probability(self, tmp_path: Path) -> None:
        with running(tmp_path, ScriptedRunner(10)) as service:
            request = FakePrompt(["ab", "c"], n=2, best_of=5, seed=3, max_tokens=6, logprobs=True)
            silent = FakePrompt("ab", best_of=5, seed=3, max_tokens=6)
            service.ask(request)
            expected = []
            for number, text in enumerate(("ab", "c")):
                ids = byte_ids(text)
                texts = [sampled(ids, 6, 3 + 5 * number + sample) for sample in range(5)]
                expected += sorted(texts, key=lambda tokens, ids=ids: -mean_logprob(ids, tokens))[:2]
            assert request.by_prompt() == expected
            assert request.wait()["index"].tolist() == [0, 1, 2, 3]
            service.ask(silent)
            assert silent.by_prompt() == expected[:1]
            assert "logprobs" not in silent.wait()
            assert service.counts("generations_total", 15)


BYTES_BY_TOKEN = {byte_ids(character)[place]: byte for character in map(chr, range(0x250))
                  for place, byte in enumerate(character.encode())}  # fmt: skip


def token_text(token: int) -> bytes:
    """Text of a token of the byte-level tokenizer: of a byte that is no character, its escape."""
    if token == EOS:
        return str(byte_tokenizer().id_to_token(token) or "").encode()
    # Bytes that no character has are written as those of Latin-1.
    byte = BYTES_BY_TOKEN.get(token) or byte_tokenizer().id_to_token(token).encode("latin-1")[0]
    return bytes([byte]) if byte < 0x80 else f"bytes:\\x{byte:02x}".encode()


class TestLogProbabilities:
    @pytest.mark.parametrize("stream", [False, True])
    def test_equal_those_of_the_logits(self, tmp_path: Path, stream: bool) -> None:
        with running(tmp_path) as service:
            options: dict[str, Any] = {"max_tokens": 9, "stream": stream}
            # They are the model's own, whatever changes the choice.
            request = FakePrompt([3, 4], logprobs=True, top_logprobs=3, seed=1, temperature=3, top_k=9, **options)
            plain, without = FakePrompt([5], logprobs=True, **options), FakePrompt([6], **options)
            service.ask(request, plain, without)
            tokens, last = request.tokens(), request.wait()
            found = {name: np.concatenate([part[name] for part in (*request.parts, last)])
                     for name in ("logprobs", "top_logprobs", "top_token_ids")}  # fmt: skip
            histories = [(3, 4, *tokens[:end]) for end in range(len(tokens))]
            expected = torch.log_softmax(torch.from_numpy(np.stack([logits_of(each) for each in histories])), -1)
            np.testing.assert_allclose(found["logprobs"], expected[range(len(tokens)), tokens], atol=1e-5)
            top = torch.topk(expected, 3)
            np.testing.assert_array_equal(found["top_token_ids"], top.indices)
            np.testing.assert_allclose(found["top_logprobs"], top.values, atol=1e-5)
            texts = np.concatenate([part["token_texts"] for part in (*request.parts, last)])
            assert [bytes(each) for each in texts] == [token_text(each) for each in tokens]
            tops = np.concatenate([part["top_token_texts"] for part in (*request.parts, last)])
            assert tops.shape == (len(tokens), 3)
            assert [bytes(each) for each in tops[0]] == [token_text(each) for each in top.indices[0].tolist()]
            assert "logprobs" in plain.wait()
            assert "top_logprobs" not in plain.wait()
            assert "logprobs" not in without.wait()


def an_end(prompt: list[int]) -> int:
    """Number of tokens that the scripted runner generates before an end-of-text token."""
    tokens = greedy(prompt, 50)
    return len(tokens) - 1 if tokens[-1] == EOS else -1


#: A prompt whose greedy text ends early.
ENDING = next([number, other] for number in range(50) for other in range(256) if 1 <= an_end([number, other]) <= 20)


class TestEnds:
    def test_end_of_text_ignored_and_delayed(self, tmp_path: Path) -> None:
        end = an_end(ENDING)
        with running(tmp_path) as service:
            plain, on, late = (FakePrompt(ENDING, max_tokens=30, **each) for each in
                               ({}, {"ignore_eos": True}, {"min_tokens": end + 3}))  # fmt: skip
            service.ask(plain, on, late)
            assert (plain.tokens(), plain.finish()) == (greedy(ENDING, 30), "eos")
            tokens = on.tokens()
            assert (tokens[: end + 1], len(tokens), on.finish()) == (greedy(ENDING, 30), 30, "length")
            assert late.tokens()[:end] == greedy(ENDING, 30)[:end]
            assert EOS not in late.tokens()[: end + 3]

    def test_stop_tokens(self, tmp_path: Path) -> None:
        tokens = greedy([7], 20)
        stop = next(token for token in tokens[3:] if token not in tokens[:3])
        with running(tmp_path) as service:
            request = FakePrompt([7], max_tokens=20, stop_token_ids=json.dumps([stop, 1000 % VOCABULARY]))
            whole = FakePrompt([7], max_tokens=tokens.index(stop))
            service.ask(request, whole)
            assert (request.tokens(), request.finish()) == (tokens[: tokens.index(stop) + 1], "stop")
            # The detokenizer replaces an unfinished character at the end.
            assert request.text().rstrip("\ufffd") == whole.text().rstrip("\ufffd")

    def test_stop_texts_wait_for_the_least_number_of_tokens(self, tmp_path: Path) -> None:
        with running(tmp_path) as service:
            whole = FakePrompt("abc", max_tokens=40, ignore_eos=True)
            service.ask(whole)
            text = whole.text()
            stop = next(sign for sign in text if sign.isascii())
            early = FakePrompt("abc", max_tokens=40, ignore_eos=True, stop=stop)
            late = FakePrompt("abc", max_tokens=40, ignore_eos=True, stop=stop, min_tokens=40)
            service.ask(early, late)
            assert early.text() == text[: text.index(stop)]
            assert late.text().startswith(text[: text.index(stop) + 1])

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_stop_text_that_begins_before_the_least_number_of_tokens(self, tmp_path: Path, stream: bool) -> None:
        with running(tmp_path) as service:
            whole = FakePrompt("abc", max_tokens=40, ignore_eos=True, logprobs=True)
            service.ask(whole)
            text = whole.text()
            # Two successive tokens that are each a character.
            pieces = [bytes(each).decode() for each in whole.wait()["token_texts"]]
            at = next(n for n in range(4, 38) if all(len(each) == 1 and each.isascii() for each in pieces[n : n + 2]))
            stop = "".join(pieces[at : at + 2])
            found = FakePrompt("abc", max_tokens=40, ignore_eos=True, stop=stop, min_tokens=at + 2, stream=stream)
            service.ask(found)
            assert (len(found.tokens()), found.finish()) == (at + 2, "stop")
            assert stop not in found.text()
            assert text.startswith(found.text() + stop)

    def test_more_tokens_than_the_default_are_refused(self, tmp_path: Path) -> None:
        with running(tmp_path) as service:
            request = FakePrompt("abc", min_tokens=20)
            service.ask(request)
            with pytest.raises(InvalidArgument, match="'min_tokens' is 20; must be at most max_tokens, 8 by default"):
                request.wait()

    @pytest.mark.parametrize("stream", [False, True])
    def test_the_prompt_is_echoed(self, tmp_path: Path, stream: bool) -> None:
        with running(tmp_path) as service:
            plain, echoed = (FakePrompt("ab ü", max_tokens=8, echo=echo, stream=stream) for echo in (False, True))
            ids = FakePrompt(byte_ids("ab ü"), max_tokens=8, echo=True, stream=stream, num_beams=2)
            search = FakePrompt(byte_ids("ab ü"), max_tokens=8, stream=stream, num_beams=2)
            service.ask(plain, echoed, ids, search)
            assert echoed.text() == "ab ü" + plain.text()
            assert echoed.tokens() == plain.tokens()
            assert ids.text() == "ab ü" + search.text()

    def test_usage(self, tmp_path: Path) -> None:
        with running(tmp_path) as service:
            request = FakePrompt(["ab", "cde"], max_tokens=4, n=2, seed=1)
            service.ask(request)
            last = request.wait()
            assert last["prompt_tokens"].tolist() == [2, 2, 3, 3]
            assert last["cached_tokens"].tolist() == [0] * 4
            assert last["generated_tokens"].sum() == len(last["token_ids"])


class TestChats:
    def test_messages_become_the_prompt(self, tmp_path: Path) -> None:
        messages = [{"role": "system", "content": "short"}, {"role": "user", "content": "hé"}]
        with running(tmp_path, ScriptedRunner(6)) as service:
            request = chat(messages, max_tokens=6, echo=True)
            tools = chat(
                messages[1:], tools=[{"name": "f"}], chat_template_kwargs='{"style": "!"}', max_tokens=6, n=2, seed=2
            )
            service.ask(request, tools)
            assert request.tokens() == greedy(byte_ids("s:short;u:hé;a:"), 6)
            assert request.text().startswith("s:short;u:hé;a:")
            ids = byte_ids('u:hé;[{"name": "f"}]!a:')
            assert tools.by_prompt() == [sampled(ids, 6, 2), sampled(ids, 6, 3)]

    @pytest.mark.parametrize(
        ("request_", "message"),
        [
            (lambda: chat([{"role": "critic", "content": ""}]), "chat template refuses these messages: no critics"),
            (lambda: chat([]), r"messages is \[\]; accepted"),
            (lambda: chat([{"role": "user", "content": "x" * 80}]), "the rendered chat template has 85 tokens"),
            (lambda: chat([{"role": "user", "content": "\ud800"}]), "half of a surrogate pair"),
            (lambda: FakePrompt("a", chat_template_kwargs='{"a": 1}'), "'chat_template_kwargs' requires messages"),
            (
                lambda: FakePrompt(None, inputs={"messages": np.array([b"[]"]), "input_ids": np.array([1])}),
                "both input_ids and messages were sent",
            ),
            (
                lambda: FakePrompt(None, inputs={"tools": np.array([b"[]"]), "input_ids": np.array([1])}),
                "tools requires messages",
            ),
        ],
    )
    def test_refusals(self, tmp_path: Path, request_: Any, message: str) -> None:
        with running(tmp_path) as service:
            bad = request_()
            service.ask(bad)
            with pytest.raises(InvalidArgument, match=message):
                bad.wait()


class TestGuidedOutput:
    def test_guided_and_free_texts_together(self, tmp_path: Path) -> None:
        schema = {"type": "object", "properties": {"a": {"enum": [1, "x"]}, "b": {"type": "boolean"}},
                  "required": ["a", "b"], "additionalProperties": False}  # fmt: skip
        with running(tmp_path, ScriptedRunner(6)) as service:
            guided = [
                FakePrompt([number], guided_json=json.dumps(schema), max_tokens=50, seed=number) for number in range(4)
            ]
            free, choice = FakePrompt([9], max_tokens=30), FakePrompt("q", guided_choice='["yes", "no"]', stream=True)
            service.ask(*guided, free, choice)
            assert free.tokens() == greedy([9], 30)
            assert (choice.text(), choice.finish()) in (("yes", "eos"), ("no", "eos"))
            for request in guided:
                assert request.finish() == "eos"
                assert json.loads(request.text()) in [{"a": a, "b": b} for a in (1, "x") for b in (True, False)]

    def test_a_cut_and_a_cancelled_text(self, tmp_path: Path) -> None:
        with running(tmp_path) as service:
            cut = FakePrompt([1], guided_regex="[a-z]{20}", max_tokens=5)
            gone = FakePrompt([2], guided_regex="[a-z]{50}", max_tokens=60)
            gone.withdrawn = True
            service.ask(cut, gone)
            assert (len(cut.text()), cut.finish()) == (5, "length")
            assert until(lambda: gone.answered)
            after = FakePrompt([3], guided_regex="[a-z]{3}")
            service.ask(after)
            assert (len(after.text()), after.finish()) == (3, "eos")


REFUSED: dict[str, dict[str, Any]] = {
    "'best_of' is 2; must be at least n, 3": {"n": 3, "best_of": 2, "seed": 1},
    "'best_of': 3 texts of which 1 are answered cannot be streamed": {"best_of": 3, "seed": 1, "stream": True},
    "'n' is 2, and greedy decoding generates the same text each time": {"n": 2},
    "'n': 5 texts need 5 slots; this model has 4": {"n": 5, "seed": 1},
    "'top_logprobs' requires logprobs": {"top_logprobs": 2},
    "'min_tokens' is 9; must be at most max_tokens, 8": {"min_tokens": 9, "max_tokens": 8},
    "'logit_bias' has the token id 257; accepted are 0 to 256": {"logit_bias": '{"257": 1}'},
    "'stop_token_ids' has the token id 300": {"stop_token_ids": 300},
    "'ignore_eos' cannot be combined with guided output": {"guided_regex": "a", "ignore_eos": True},
    "'min_tokens' cannot be combined with guided output": {"guided_regex": "a", "min_tokens": 3},
    "'guided_regex': .*unclosed group": {"guided_regex": "("},
    "'guided_json' cannot be combined with num_beams 2": {"guided_json": "{}", "num_beams": 2},
    "'logprobs' cannot be combined with num_beams 2": {"logprobs": True, "num_beams": 2},
    "'n' cannot be combined with num_beams 2": {"n": 2, "num_beams": 2},
    "'ignore_eos' cannot be combined with num_beams 2": {"ignore_eos": True, "num_beams": 2},
}


def test_refused_options(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        for message, options in REFUSED.items():
            bad = FakePrompt([1], **options)
            service.ask(bad)
            with pytest.raises(InvalidArgument, match=message):
                bad.wait()
        # What changes nothing is accepted.
        fine = FakePrompt([1], num_beams=2, n=1, best_of=1, ignore_eos=False, logprobs=False, max_tokens=2)
        service.ask(fine)
        fine.wait()


def test_penalties_equal_those_of_transformers(tmp_path: Path) -> None:
    model = tiny_model("llama")
    with running(tmp_path, tiny_runner(model, slots=4, max_length=MAX_LENGTH)) as service:
        options: dict[str, Any] = {"repetition_penalty": 1.4, "min_tokens": 12, "logit_bias": '{"65": 6.0, "66": -100}'}
        request, plain = FakePrompt("abab", max_tokens=20, **options), FakePrompt("abab", max_tokens=20)
        service.ask(request, plain)
        more = {"min_new_tokens": 12, "sequence_bias": [[[65], 6.0], [[66], -100.0]], "repetition_penalty": 1.4}
        ids = torch.tensor([byte_ids("abab")])
        generated = model.generate(ids, max_new_tokens=20, do_sample=False, eos_token_id=EOS, pad_token_id=EOS, **more)
        assert request.tokens() == generated[0, 4:].tolist()
        expected = generated_by_transformers(model, np.array(byte_ids("abab")), 20)
        assert plain.tokens() == (expected[: expected.index(EOS) + 1] if EOS in expected else expected)
        assert plain.tokens() != request.tokens()
