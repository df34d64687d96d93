"""Several prompts and beams per request on a real server, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from testing.decoders import EOS, POSITIONS, byte_ids
from testing.waiting import until
from tests.flover.generating import searched_by_transformers
from tests.flover.served.conftest import Served, run_generate
from tidal_client import AsyncClient, Client, InvalidArgument

pytestmark = pytest.mark.server

TEXTS = ["hello", "the naïve cat"]
BEAMS: dict[str, Any] = {"num_beams": 3, "length_penalty": 0.6, "early_stopping": "never"}


def test_beams_equal_those_of_transformers_beside_other_requests(url: str, served: Served) -> None:
    with Client(url) as client, ThreadPoolExecutor(3) as pool:
        searched = pool.submit(client.generate, "writer", TEXTS, max_tokens=20, **BEAMS)
        both = pool.submit(client.generate, "writer", TEXTS, max_tokens=20)
        alone = pool.submit(client.generate, "writer", [7, 8], max_tokens=20)
        assert list(alone.result().tokens) == served.greedy("writer", [7, 8], 20)
        for number, text in enumerate(TEXTS):
            prompt = byte_ids(text)
            greedy, beams = both.result()[number], searched.result()[number]
            assert list(greedy.tokens) == served.greedy("writer", prompt, 20)
            assert list(beams.tokens) == searched_by_transformers(served.sources["writer"], prompt, 20, EOS, **BEAMS)
            assert beams.index == greedy.index == number
            assert beams.prompt_tokens == len(prompt)
            assert beams.generated_tokens == len(beams.tokens)
            assert beams.finish_reason == ("eos" if beams.tokens[-1] == EOS else "length")
    assert until(lambda: served.metric("copied_bytes_total", "writer") > 0)


def test_parts_name_their_prompt(url: str, served: Served) -> None:
    with Client(url) as client:
        parts = list(client.generate_stream("writer", TEXTS, max_tokens=20))
        whole = client.generate("writer", TEXTS, max_tokens=20)
        searched = list(client.generate_stream("writer", TEXTS, max_tokens=20, num_beams=2))
        found = client.generate("writer", [TEXTS[1]], max_tokens=20, num_beams=2)
    for number in range(len(TEXTS)):
        mine = [part for part in parts if part.index == number]
        assert mine  # only one if all tokens were generated before the first was sent
        assert "".join(part.text for part in mine) == whole[number].text
        assert [part.finish_reason for part in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1].finish_reason == whole[number].finish_reason
        assert mine[-1].generated_tokens == sum(len(part.tokens) for part in mine)
    assert sorted(part.index for part in searched) == [0, 1]
    assert [part.text for part in searched if part.index == 1] == [answer.text for answer in found]


def test_plain_generate_returns_lists(served: Served) -> None:
    fields = {"text_input": TEXTS, "parameters": {"max_tokens": 8, **BEAMS, "early_stopping": True}}
    status, body = served.post("writer", "generate", **fields)
    answer = json.loads(body)
    assert status == 200
    assert answer["index"] == [0, 1]
    assert len(answer["text_output"]) == len(answer["finish_reason"]) == 2
    assert len(answer["token_ids"]) == sum(answer["generated_tokens"])
    first = answer["token_ids"][: answer["generated_tokens"][0]]
    settings = {**BEAMS, "early_stopping": True}
    prompt = byte_ids(TEXTS[0])
    assert first == searched_by_transformers(served.sources["writer"], prompt, 8, EOS, **settings)
    status, body = served.post("writer", "generate_stream", text_input=TEXTS, stream=True, max_tokens=8)
    events = [json.loads(line.removeprefix("data:")) for line in body.splitlines() if line.startswith("data:")]
    assert {event["index"] for event in events} == {0, 1}


def test_cancelled_requests_free_their_slots(url: str, served: Served) -> None:
    async def leave(client: AsyncClient, number: int) -> None:
        more = {"num_beams": 3} if number % 2 else {}
        parts = client.generate_stream("writer", TEXTS, max_tokens=POSITIONS - 20, **more)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02 * (1 + number)), contextlib.aclosing(parts):
                async for _ in parts:
                    break

    async def all_of_them() -> None:
        async with AsyncClient(url) as client:
            await asyncio.gather(*(leave(client, number) for number in range(5)))
            (answer,) = await client.generate("writer", ["hello"], max_tokens=5)
            assert list(answer.tokens) == served.greedy("writer", byte_ids("hello"), 5)

    asyncio.run(all_of_them())
    assert until(lambda: served.metric("taken_slots", "writer") == 0)
    assert served.metric("waiting_slots", "writer") == 0


def test_errors_name_the_prompt(url: str) -> None:
    with Client(url) as client:
        for texts, options, message in (
            (["fine", "x" * 140], {}, f"text_input row 1 has 140 tokens; this model reads at most {POSITIONS - 1}"),
            (["a"] * 7, {}, "text_input has shape [7]; accepted is [prompts], 1 to 6"),
            (["a"], {"num_beams": 7}, "'num_beams': 7 beams need 7 slots; this model has 6"),
            (["a"], {"num_beams": 2, "top_k": 5}, "'top_k' cannot be combined with num_beams 2"),
            (["a"], {"length_penalty": 2.0}, "'length_penalty' requires num_beams above 1"),
        ):
            with pytest.raises(InvalidArgument) as caught:
                client.generate("writer", texts, **options)  # type: ignore[arg-type]
            assert message in str(caught.value)


def test_the_command(url: str) -> None:
    with Client(url) as client:
        answers = client.generate("writer", TEXTS, max_tokens=9, **BEAMS)
    args = ["writer", "--url", url, "-n", "9", "-t", TEXTS[0], "-t", TEXTS[1], "--num-beams", "3",
            "--length-penalty", "0.6", "--early-stopping", "never"]  # fmt: skip
    plain, as_json = run_generate(*args), run_generate(*args, "--json")
    assert plain.stdout == "".join(answer.text + "\n" for answer in answers)
    assert plain.stderr.count(" generated tokens, ") == 2
    objects = [json.loads(line) for line in as_json.stdout.splitlines()]
    assert [(each["index"], each["text"]) for each in objects] == [(each.index, each.text) for each in answers]
