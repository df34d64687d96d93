"""Rendered chat templates equal those of transformers' tokenizers; malformed messages are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from testing.decoders import byte_ids, byte_tokenizer
from tests.flover.chat.templates import TEMPLATES
from tidal.errors import InvalidArgument
from tidal.flover.chat import ChatFormat, ChatTemplate, load_chat_template, read_messages, read_tools
from tidal.flover.prompts import PromptReader
from tidal.options import RequestOptions
from tidal.text import TextTokenizer

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
TOOLS = [{"type": "function", "function": {"name": "wëather", "description": "<b>", "parameters": {"type": "object"}}}]
ASK, ANSWER = {"role": "user", "content": " Hi <|im_end|> & “you” "}, {"role": "assistant", "content": "Yes\n"}
CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [ASK],
    "system": [{"role": "system", "content": "Be brief."}, ASK],
    "turns": [ASK, ANSWER, {"role": "user", "content": "日本"}],
    "nulls": [ASK, {**ANSWER, "tool_calls": None, "name": None}, ASK],
    "reasoning": [ASK, {**ANSWER, "reasoning": "\nbecause\n"}, ASK],
    "call": [ASK, {"role": "assistant", "content": None, "tool_calls": [
        {"type": "function", "function": {"name": "wëather", "arguments": {"b": 1, "a": "é"}}}]},
        {"role": "tool", "content": "22"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
}  # fmt: skip


def transformers_tokenizer(template: str | dict[str, str]) -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(), chat_template=template, **SPECIAL)


def rendered_by_both(template: str | dict[str, str], messages: Any, tools: Any, **variables: Any) -> tuple[Any, Any]:
    """Return what transformers and what the server renders; an error is an error of both."""
    tokenizer = transformers_tokenizer(template)
    own = ChatTemplate(
        ChatFormat(
            templates=template if isinstance(template, dict) else {"default": template},
            special_tokens=tokenizer.special_tokens_map,
        )
    )
    try:
        expected = tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=True, **variables
        )
    except Exception:
        with pytest.raises(InvalidArgument, match="the model's chat template refuses these messages: "):
            own.render(messages, tools, variables)
        return None, None
    return expected, own.render(messages, tools, variables)


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
def test_prompts_equal_those_of_transformers(template: str, chat: str, tools: Any) -> None:
    expected, found = rendered_by_both(TEMPLATES[template], CHATS[chat], tools)
    assert found == expected
    if chat in ("one", "turns"):
        assert expected


def test_variables_and_named_templates() -> None:
    for variables in ({}, {"enable_thinking": False}, {"enable_thinking": True}, {"bos_token": "other"}):
        for template in ("qwen-3", "llama-3"):
            expected, found = rendered_by_both(TEMPLATES[template], [ASK], None, **variables)
            assert found == expected is not None
    named = {"default": "plain", "tool_use": "tools"}
    assert [rendered_by_both(named, [ASK], tools) for tools in (None, TOOLS)] == [("plain",) * 2, ("tools",) * 2]
    with pytest.raises(InvalidArgument, match="has the chat templates rag, tool_use, and none of them is 'default'"):
        ChatTemplate(ChatFormat(templates={"rag": "", "tool_use": ""}, special_tokens={})).render([ASK])


@given(st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": st.text()}),
                min_size=1, max_size=4), st.sampled_from(sorted(TEMPLATES)))  # fmt: skip
def test_any_texts_render_equally(messages: list[dict[str, str]], template: str) -> None:
    expected, found = rendered_by_both(TEMPLATES[template], messages, None)
    assert found == expected


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ self.__init__.__globals__ }}",
        "{{ messages[0].update(role='x') }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{% include 'x' %}",
    ],
)
def test_templates_are_sandboxed(attack: str) -> None:
    with pytest.raises(InvalidArgument, match="chat template refuses"):
        ChatTemplate(ChatFormat(templates={"default": attack}, special_tokens={})).render([dict(ASK)])


def test_published_templates(tmp_path: Path) -> None:
    assert load_chat_template(tmp_path) is None
    file = tmp_path / "tokenizer/chat.json"
    file.parent.mkdir()
    for content, message in (
        ("{", "is not valid"),
        ('{"templates": {}, "special_tokens": {}}', "is not valid"),
        ('{"templates": {"default": "{% if %}"}, "special_tokens": {}}', "chat template 'default' is not valid Jinja"),
    ):
        file.write_text(content)
        with pytest.raises(InvalidArgument, match=message):
            load_chat_template(tmp_path)


def test_the_tokenizer_adds_no_special_tokens_to_a_rendered_prompt(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    chat = ChatTemplate(ChatFormat(templates={"default": "{{ bos_token }}hi"}, special_tokens={"bos_token": "<s>"}))
    reader = PromptReader(TextTokenizer(tmp_path / "tokenizer.json", 20), 257, 1, chat)
    (prompt,) = reader.read({"messages": np.array([json.dumps([ASK]).encode()], object)}, RequestOptions(), 1, "texts")
    assert prompt.ids.tolist() == [256, *byte_ids("hi")]
    (text,) = reader.read({"text_input": np.array([b"hi"], object)}, RequestOptions(), 1, "texts")
    assert text.ids.tolist() == [256, *byte_ids("hi")]


BAD_MESSAGES: list[tuple[Any, str]] = [
    (b"[", "messages is not valid JSON"),
    (b"\xff", "messages is not valid JSON"),
    (b"[" * 100_000, "messages is not valid JSON"),
    ({}, "messages is {}; accepted is a JSON list of 1 to 4096 objects"),
    ([], "messages is []; accepted"),
    (["hi"], 'messages is ["hi"]; accepted'),
    ([{"content": "a"}], "messages[0] has the role null; accepted is a text such as 'user'"),
    ([ASK, {"role": 3}], "messages[1] has the role 3"),
    ([{"role": "user", "content": 5}], "messages[0] has the content 5; accepted are a text, a list of text parts"),
    ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0] has the content part"),
    ([{"role": "user", "content": ["a"]}], 'messages[0] has the content part "a"'),
    ([{"role": "user", "content": "x" * 2000}], "accepted are at most 1000"),
]


@pytest.mark.parametrize(("messages", "message"), BAD_MESSAGES)
def test_malformed_messages(messages: Any, message: str) -> None:
    text = messages if isinstance(messages, bytes) else json.dumps(messages).encode()
    with pytest.raises(InvalidArgument) as caught:
        read_messages(np.array([text], object), 1000 if b"xxx" in text else 1 << 20)
    assert message in str(caught.value)


def test_malformed_tools() -> None:
    assert read_tools(None, 10) is None
    with pytest.raises(InvalidArgument, match=r"tools is \{\}; accepted is a JSON list"):
        read_tools(np.array([b"{}"], object), 10)
    with pytest.raises(InvalidArgument, match=r"tools has shape \[2\]; accepted is \[1\]"):
        read_tools(np.array([b"[]", b"[]"], object), 10)
