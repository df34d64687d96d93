"""Chats, guided output, several texts and log probabilities through the real server."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from testing.decoders import EOS, byte_ids
from tests.flover.served.conftest import Served, run_generate
from tidal_client import AsyncClient, Client, InvalidArgument

pytestmark = pytest.mark.server

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hé?"}]


def chat_prompt(served: Served) -> list[int]:
    tokenizer = AutoTokenizer.from_pretrained(served.repository.parent / "sources/writer")
    ids: list[int] = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    return ids


class TestChats:
    def test_tokens_equal_those_behind_transformers_template(self, url: str, served: Served) -> None:
        expected = served.greedy("writer", chat_prompt(served), 20)

        async def chat_async() -> Any:
            async with AsyncClient(url) as client:
                parts = [part async for part in client.chat_stream("writer", MESSAGES, max_tokens=20)]
                return await client.chat("writer", MESSAGES, max_tokens=20), parts

        with Client(url) as client:
            whole = client.chat("writer", MESSAGES, max_tokens=20)
            parts = list(client.chat_stream("writer", MESSAGES, max_tokens=20))
        again, more_parts = asyncio.run(chat_async())
        for found in (whole.tokens, again.tokens, *(sum((p.tokens for p in each), ()) for each in (parts, more_parts))):
            assert list(found) == expected
        assert whole.prompt_tokens == len(chat_prompt(served))
        # A slot holds the prompt of the call before; the last token's logits are needed.
        assert again.cached_tokens == len(chat_prompt(served)) - 1

    def test_over_generate_and_by_the_command(self, served: Served) -> None:
        expected = served.greedy("writer", chat_prompt(served), 20)
        status, body = served.post("writer", "generate", messages=json.dumps(MESSAGES), max_tokens=20)
        assert (status, np.atleast_1d(json.loads(body)["token_ids"]).tolist()) == (200, expected)
        done = run_generate("writer", "--url", served.url("grpc"), "--chat", "--system", "Be brief.", "-t", "Hé?",
                            "-n", "20", "--json")  # fmt: skip
        assert json.loads(done.stdout)["tokens"] == expected
        assert run_generate("writer", "--chat", "-t", "a", "-t", "b").exit_code == 2

    def test_refusals(self, url: str) -> None:
        with Client(url) as client:
            with pytest.raises(InvalidArgument, match="messages were sent, and this model has no chat template"):
                client.chat("narrow", MESSAGES)
            with pytest.raises(InvalidArgument, match="the model's chat template refuses these messages: "):
                client.chat("writer", [{"role": "user"}])
            with pytest.raises(InvalidArgument, match="option 'n': 2 texts where one is returned; use chat_stream"):
                client.chat("writer", MESSAGES, n=2, seed=1)


class TestGuidedOutput:
    def test_answers_conform(self, url: str) -> None:
        schema = {"type": "object", "properties": {"a": {"enum": ["x", 2]}}, "required": ["a"],
                  "additionalProperties": False}  # fmt: skip
        with Client(url) as client:
            for seed in range(3):
                found = client.generate("writer", "q", guided_json=schema, seed=seed, max_tokens=60)
                assert (json.loads(found.text) in ({"a": "x"}, {"a": 2}), found.finish_reason) == (True, "eos")
            parts = client.generate_stream("writer", ["q", "r"], guided_choice=["yes", "nö"], temperature=2)
            texts = ["", ""]
            for part in parts:
                texts[part.index] += part.text
            assert {*texts} <= {"yes", "nö"}
            grammar = client.generate("writer", "q", guided_grammar='start: "<" /[0-9]{3}/ ">"')
            assert re.fullmatch("<[0-9]{3}>", grammar.text)
            with pytest.raises(InvalidArgument, match=r"request option 'guided_regex': .*unclosed group"):
                client.generate("writer", "q", guided_regex="(")

    def test_over_generate_and_by_the_command(self, served: Served) -> None:
        _, body = served.post("writer", "generate", text_input="q", guided_regex="[a-c]{4}")
        assert re.fullmatch("[a-c]{4}", json.loads(body)["text_output"])
        done = run_generate("writer", "--url", served.url("grpc"), "-t", "q", "--guided-choice", "on",
                            "--guided-choice", "off")  # fmt: skip
        assert done.stdout.strip() in ("on", "off")


class TestOptions:
    def test_several_texts_with_log_probabilities(self, url: str, served: Served) -> None:
        with Client(url) as client:
            options: dict[str, Any] = {"seed": 4, "max_tokens": 10, "logprobs": True, "top_logprobs": 2}
            texts = client.generate("writer", ["ab", "c"], n=2, **options)
            best = client.generate("writer", ["ab"], n=1, best_of=3, **options)
        assert [each.index for each in texts] == [0, 1, 2, 3]
        for each in (*texts, *best):
            prompt = byte_ids("c" if each.index > 1 else "ab")
            ids = torch.tensor([[*prompt, *each.tokens]])
            with torch.no_grad():
                logits = served.sources["writer"](ids).logits[0, len(prompt) - 1 : -1]
            expected = torch.log_softmax(logits, -1)
            found = expected[range(len(each.tokens)), list(each.tokens)]
            np.testing.assert_allclose(each.logprobs, found, atol=1e-3)
            assert each.top_logprobs is not None
            top = torch.topk(expected, 2)
            np.testing.assert_allclose([list(one.values()) for one in each.top_logprobs], top.values, atol=1e-3)
        with Client(url) as client, pytest.raises(InvalidArgument, match="option 'n': 2 texts where one is returned"):
            client.generate("writer", "ab", n=2, seed=1)

    def test_ends_and_echo(self, url: str, served: Served) -> None:
        tokens = served.greedy("writer", byte_ids("abc"), 30)
        stop = next(token for token in tokens[2:] if token not in tokens[:2])
        with Client(url) as client:
            ended = client.generate("writer", "abc", max_tokens=30, stop_token_ids=[stop], echo=True)
            on = client.generate("writer", "abc", max_tokens=30, ignore_eos=True)
            biased = client.generate("writer", "abc", max_tokens=5, logit_bias={tokens[0]: -100.0}, min_tokens=5)
        assert list(ended.tokens) == tokens[: tokens.index(stop) + 1]
        assert (ended.finish_reason, ended.text[:3]) == ("stop", "abc")
        assert (len(on.tokens), on.finish_reason) == (30, "length")
        assert len(biased.tokens) == 5
        assert {EOS, tokens[0]}.isdisjoint(biased.tokens)
