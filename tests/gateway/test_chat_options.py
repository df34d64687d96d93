"""Log probabilities, guided answers and tools of chats through the unmodified `openai` client, on a real decoder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import langchain_openai
import openai
import pydantic
import pytest
import torch
import transformers

from testing.decoders import EOS
from testing.gateways import RunningGateway

pytestmark = pytest.mark.server

MESSAGES: Any = [{"role": "user", "content": "hi"}]
PARAMETERS = {
    "type": "object",
    "properties": {"x": {"enum": ["left", "right"]}},
    "required": ["x"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "turn", "description": "turn", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "stop"}},
]
CALL = '<tool_call>\n{"name": "turn", "arguments": {"x": "left"}}\n</tool_call>'


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0, timeout=60) as found:
        yield found


@pytest.fixture(scope="module")
def truth(decoder: Path) -> Any:
    """The unmodified model and its tokenizer."""
    model = transformers.AutoModelForCausalLM.from_pretrained(decoder / "source", dtype=torch.float32).eval()
    return model, transformers.AutoTokenizer.from_pretrained(decoder / "source")


def expected(truth: Any, prompt: list[int], count: int, top: int) -> list[tuple[float, list[float]]]:
    """Log probability of each token of the greedy text, and the highest ones of each step."""
    model, _ = truth
    ids, found = list(prompt), []
    with torch.no_grad():
        for _ in range(count):
            values = torch.log_softmax(model(torch.tensor([ids])).logits[0, -1], -1)
            found.append((float(values.max()), torch.topk(values, top).values.tolist()))
            ids.append(int(values.argmax()))
    return found


class TestLogprobs:
    def test_of_a_chat_whole_and_streamed(self, client: openai.OpenAI, truth: Any) -> None:
        ask = partial(
            client.chat.completions.create, model="writer", messages=MESSAGES, max_tokens=6, logprobs=True,
            top_logprobs=3,
        )  # fmt: skip
        whole = ask().choices[0]
        prompt = truth[1].apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
        assert whole.logprobs is not None
        assert whole.logprobs.content is not None
        content = whole.logprobs.content
        wanted = expected(truth, prompt, len(content), 3)
        for each, (value, tops) in zip(content, wanted, strict=True):
            assert each.logprob == pytest.approx(value, abs=2e-3)
            assert [top.logprob for top in each.top_logprobs] == pytest.approx(tops, abs=2e-3)
            assert each.top_logprobs[0].token == each.token
        text = b"".join(bytes(each.bytes or ()) for each in content)
        assert text.decode("utf-8", "replace") == whole.message.content
        streamed = [chunk.choices[0].logprobs for chunk in ask(stream=True) if chunk.choices]
        parts = [each for logprobs in streamed if logprobs is not None for each in logprobs.content or ()]
        assert [each.bytes for each in parts] == [each.bytes for each in content]
        plain = client.chat.completions.create(model="writer", messages=MESSAGES, max_tokens=2).choices[0]
        assert plain.logprobs is None

    def test_of_a_completion(self, client: openai.OpenAI, truth: Any) -> None:
        found = client.completions.create(model="writer", prompt="hello", max_tokens=5, logprobs=2).choices[0].logprobs
        assert found is not None
        prompt = truth[1]("hello")["input_ids"]
        assert found.tokens is not None
        wanted = expected(truth, prompt, len(found.tokens), 2)
        assert found.token_logprobs == pytest.approx([value for value, _ in wanted], abs=2e-3)
        assert found.top_logprobs is not None
        for row, (_, tops) in zip(found.top_logprobs, wanted, strict=True):
            assert sorted(row.values(), reverse=True) == pytest.approx(tops, abs=2e-3)
        assert found.text_offset is not None
        assert found.text_offset[0] == 0
        assert found.text_offset == sorted(found.text_offset)

    def test_the_end_of_text_has_none(self, client: openai.OpenAI) -> None:
        bias = {str(EOS): 100}
        found = client.chat.completions.create(
            model="writer", messages=MESSAGES, max_tokens=4, logprobs=True, logit_bias=bias
        )  # fmt: skip
        assert found.choices[0].finish_reason == "stop"
        assert found.choices[0].logprobs is not None
        assert found.choices[0].logprobs.content == []


class TestGuided:
    def test_json_of_a_schema(self, client: openai.OpenAI) -> None:
        class Answer(pydantic.BaseModel):
            ready: bool
            side: str = pydantic.Field(pattern="^(left|right)$")

        found = client.chat.completions.parse(model="writer", messages=MESSAGES, response_format=Answer, max_tokens=80)
        parsed = found.choices[0].message.parsed
        assert parsed is not None
        assert parsed.side in ("left", "right")

    def test_any_json_object(self, client: openai.OpenAI) -> None:
        found = client.chat.completions.create(
            model="writer", messages=MESSAGES, response_format={"type": "json_object"}, max_tokens=30,
        )  # fmt: skip
        content = found.choices[0].message.content or ""
        assert content.startswith("{")
        if found.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(content), dict)

    def test_n_texts_are_generated_by_the_model(self, client: openai.OpenAI) -> None:
        options: Any = {"temperature": 1.0, "seed": 3, "max_tokens": 6}
        several = client.completions.create(model="writer", prompt="hello", n=3, **options)
        texts = [each.text for each in several.choices]
        assert [each.index for each in several.choices] == [0, 1, 2]
        assert len(set(texts)) == 3
        assert several.usage is not None
        assert several.usage.prompt_tokens == 5
        with pytest.raises(openai.BadRequestError, match="9 texts need 9 slots; this model has 4"):
            client.completions.create(model="writer", prompt="hello", n=9, temperature=1)


class TestTools:
    def test_a_call_that_is_required(self, client: openai.OpenAI) -> None:
        ask = partial(client.chat.completions.create, model="writer", messages=MESSAGES, tools=TOOLS, max_tokens=200)
        found = ask(tool_choice="required", parallel_tool_calls=False).choices[0]
        assert found.finish_reason == "tool_calls"
        assert found.message.content is None
        assert found.message.tool_calls is not None
        (call,) = found.message.tool_calls
        assert call.type == "function"
        assert call.function.name in ("turn", "stop")
        named = ask(tool_choice={"type": "function", "function": {"name": "turn"}}).choices[0]
        assert named.finish_reason == "stop"
        assert named.message.tool_calls is not None
        assert named.message.tool_calls[0].type == "function"
        assert json.loads(named.message.tool_calls[0].function.arguments)["x"] in ("left", "right")

    def test_a_streamed_call_is_the_whole_one(self, client: openai.OpenAI) -> None:
        choice: Any = {"type": "function", "function": {"name": "turn"}}
        ask = partial(client.chat.completions.create, model="writer", messages=MESSAGES, tools=TOOLS, max_tokens=200)
        whole = ask(tool_choice=choice).choices[0].message.tool_calls
        name, arguments, identifiers = "", "", []
        for chunk in ask(tool_choice=choice, stream=True):
            for call in chunk.choices[0].delta.tool_calls or ():
                assert call.index == 0
                assert call.function is not None
                name += call.function.name or ""
                arguments += call.function.arguments or ""
                identifiers += [call.id] if call.id else []
        assert whole is not None
        assert whole[0].type == "function"
        assert (name, arguments) == (whole[0].function.name, whole[0].function.arguments)
        assert len(identifiers) == 1

    def test_calls_that_the_model_makes_by_itself(self, client: openai.OpenAI) -> None:
        """The double answers with its last message."""
        for stream in (False, True):
            asked: Any = [{"role": "user", "content": f"now {CALL}"}]
            ask = partial(client.chat.completions.create, model="talker", messages=asked, tools=TOOLS)
            if not stream:
                message = ask().choices[0].message
                assert message.content == "1 messages, 2 tools, now"
                assert message.tool_calls is not None
                calls = [(message.tool_calls[0].id, message.tool_calls[0].function)]  # type: ignore[union-attr]
                assert json.loads(calls[0][1].arguments) == {"x": "left"}
                assert ask(tool_choice="none").choices[0].message.tool_calls is None
                continue
            chunks = [chunk.choices[0] for chunk in ask(stream=True)]
            assert "".join(each.delta.content or "" for each in chunks) == "1 messages, 2 tools, now"
            parts = [call.function for each in chunks for call in each.delta.tool_calls or ()]
            assert json.loads("".join(each.arguments or "" for each in parts if each)) == {"x": "left"}
            assert chunks[-1].finish_reason == "tool_calls"

    def test_arguments_in_messages_reach_the_template_as_objects(self, client: openai.OpenAI) -> None:
        """The template writes the member `x` of each call."""
        call = {"id": "c", "type": "function", "function": {"name": "turn", "arguments": '{"x": "left"}'}}
        messages: Any = [
            *MESSAGES,
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "ok"},
        ]
        plain: Any = [*MESSAGES, {"role": "assistant", "content": "left"}, {"role": "tool", "content": "ok"}]
        found = [
            client.chat.completions.create(model="writer", messages=each, max_tokens=8) for each in (messages, plain)
        ]
        assert found[0].choices[0].message.content == found[1].choices[0].message.content
        assert found[0].usage == found[1].usage

    def test_langchain(self, gateway: RunningGateway) -> None:
        chat = langchain_openai.ChatOpenAI(
            model="writer", base_url=f"{gateway.url}/v1", api_key="any", max_retries=0, max_completion_tokens=200  # type: ignore[arg-type]
        )  # fmt: skip
        bound = chat.bind_tools(TOOLS, tool_choice="turn")
        (call,) = bound.invoke("hi").tool_calls
        assert call["name"] == "turn"
        assert call["args"]["x"] in ("left", "right")

    def test_a_schema_and_a_call_exclude_each_other(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError, match="'response_format' and 'tool_choice' both prescribe"):
            client.chat.completions.create(
                model="writer", messages=MESSAGES, tools=TOOLS, tool_choice="required",
                response_format={"type": "json_object"},
            )  # fmt: skip
