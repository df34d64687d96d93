"""Calls of tools in texts, whole and in parts, against the texts that they were written as."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher

from tidal_gateway.errors import Refusal
from tidal_gateway.settings import GatewaySettings
from tidal_gateway.tools.calls import CallParser, CallPart
from tidal_gateway.tools.formats import TOOL_FORMATS, detect_format
from tidal_gateway.tools.requests import Function, Tool, forced_options, read_tool_use, response_options

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('a"\\{}[]<>/é', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(
    st.tuples(st.sampled_from(["f", "g"]), st.dictionaries(st.text('x"', min_size=1, max_size=2), VALUES, max_size=3)),
    min_size=1,
    max_size=3,
)
CUTS = st.lists(st.integers(1, 7), min_size=1, max_size=6)


def parsed(
    form: str, text: str, cuts: list[int] | None = None, several: bool = True, whole: bool = False
) -> tuple[str, list[list[str]]]:
    """Text and calls [name, arguments] of an answer that arrives in parts of these sizes."""
    parser = CallParser(TOOL_FORMATS[form], ["f", "g"], several=several, whole=whole)
    parts: list[str | CallPart] = []
    sizes, start = cuts or [len(text) or 1], 0
    while start < len(text):
        size = sizes[start % len(sizes)]
        parts += parser.feed(text[start : start + size])
        start += size
    parts += parser.finish()
    calls: list[list[str]] = []
    for part in parts:
        if isinstance(part, CallPart):
            if part.name is not None:
                assert part.index == len(calls)
                calls.append([part.name, ""])
            calls[part.index][1] += part.arguments
    return "".join(part for part in parts if isinstance(part, str)), calls


def written(form: str, calls: list[tuple[str, Any]], *, swapped: bool) -> str:
    own = TOOL_FORMATS[form]
    texts = []
    for name, arguments in calls:
        members = [("name", name), (own.arguments, arguments)]
        texts.append(json.dumps(dict(reversed(members) if swapped else members)))
    if form == "llama3":
        return "<|python_tag|>" + "; ".join(texts)
    if form == "mistral":
        return f"[TOOL_CALLS] [{', '.join(texts)}]"
    return "".join(f"\n<tool_call>\n{text}\n</tool_call>" for text in texts)


class TestParser:
    @pytest.mark.parametrize("form", TOOL_FORMATS)
    @given(calls=CALLS, cuts=CUTS, swapped=st.booleans())
    def test_calls_are_those_that_were_written(self, form: str, calls: Any, cuts: list[int], swapped: bool) -> None:
        text, found = parsed(form, written(form, calls, swapped=swapped), cuts)
        assert text == ""
        assert [(name, json.loads(arguments)) for name, arguments in found] == calls
        assert parsed(form, written(form, calls, swapped=swapped), whole=True)[1] == [
            [name, json.dumps(arguments)] for name, arguments in calls
        ]

    @pytest.mark.parametrize(
        ("form", "text"),
        [
            ("hermes", '<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>'),
            ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1, 2}}</tool_call>'),
            ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
            ("hermes", '<tool_call>{"name": "f", "arguments": "x"}</tool_call>'),
            ("hermes", '<tool_call>{"name": "f", "arguments": {"a'),
            ("llama3", '{"name": "f", "parameters": {"a": nope}}'),
            ("mistral", '[{"name": "f", "arguments": {"a": nope}}]'),
            ("mistral", '[{"name": "f", "arguments": {"a": '),
            ("mistral", '[{"name": "other", "arguments": {}}]'),
            ("mistral", "[1, 2] is a list"),
            ("mistral", "[ "),
        ],
    )
    def test_malformed_calls_of_a_whole_answer_stay_text(self, form: str, text: str) -> None:
        assert parsed(form, text, whole=True) == (text, [])

    @given(st.text("<>/tool_call {\n", max_size=40), CUTS)
    def test_text_without_a_call_stays(self, text: str, cuts: list[int]) -> None:
        assert parsed("hermes", text, cuts) == parsed("hermes", text)
        if "<tool_call>" not in text:
            assert parsed("hermes", text, cuts) == (text, [])

    def test_text_and_calls(self) -> None:
        call = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
        for cuts in ([1], [3, 5], [100]):
            assert parsed("hermes", f"first \n{call}\n behind", cuts) == ("first\n behind", [["f", '{"a": 1}']])
            assert parsed("hermes", call * 3, cuts, several=False) == ("", [["f", '{"a": 1}']])

    @pytest.mark.parametrize(
        ("form", "text", "found"),
        [
            ("hermes", '<tool_call>{"name": 3}</tool_call>', ('<tool_call>{"name": 3}</tool_call>', [])),
            ("hermes", '<tool_call>{"name": "f"', ('<tool_call>{"name": "f"', [])),
            ("hermes", '<tool_call>{"name": "f", "arguments": {"a', ("", [["f", '{"a']])),
            ("hermes", '<tool_call>{"name": "f"}</tool_call>', ("", [["f", "{}"]])),
            ("hermes", '<tool_call>{"name": "f", "arguments": "{}"}', ("", [["f", "{}"]])),
            ("llama3", '{"name": "other", "parameters": {}}', ('{"name": "other", "parameters": {}}', [])),
            ("llama3", '{"answer": [1, {}]} is it', ('{"answer": [1, {}]} is it', [])),
            ("llama3", "plain <|python_tag|>", ("plain <|python_tag|>", [])),
            ("llama3", "<|pyth", ("<|pyth", [])),
            ("mistral", '[{"name": "f", "arguments": {"a": 1}}]', ("", [["f", '{"a": 1}']])),
            ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}] then', (" then", [["f", "{}"]])),
            ("mistral", '[{"name": "f", "arguments": {}}, {"name": "g"}]', ("", [["f", "{}"], ["g", "{}"]])),
            ("mistral", '[{"name": "f", "arguments": {}}, ', ("", [["f", "{}"]])),
            ("mistral", "[TOOL", ("[TOOL", [])),
            ("mistral", "[1, 2] is", ("[1, 2] is", [])),
            ("llama3", '  {"type": "function", "name": "g", "parameters": {}}', ("", [["g", "{}"]])),
        ],
    )
    def test_odd_answers(self, form: str, text: str, found: Any) -> None:
        for cuts in ([1], [2, 7], [200]):
            assert parsed(form, text, cuts) == found


class TestFormats:
    def test_are_detected_by_their_marks(self) -> None:
        assert detect_format("{%- for … %}<tool_call></tool_call>") is TOOL_FORMATS["hermes"]
        assert detect_format('Environment: ipython {"name": …, "parameters": …}') is TOOL_FORMATS["llama3"]
        mistral = "[AVAILABLE_TOOLS] … [/AVAILABLE_TOOLS][TOOL_CALLS]"
        assert detect_format(mistral) is TOOL_FORMATS["mistral"]
        assert detect_format(f"{mistral}[ARGS]") is None
        assert detect_format("{{ messages }}") is detect_format(None) is None

    def test_ids_have_the_length_that_templates_accept(self) -> None:
        assert len(TOOL_FORMATS["mistral"].new_id()) == 9
        assert TOOL_FORMATS["mistral"].new_id().isalnum()
        assert TOOL_FORMATS["hermes"].new_id().startswith("call_")

    def test_of_the_settings_are_checked(self) -> None:
        assert GatewaySettings(tool_format=("a=hermes", "b=llama3")).tool_format
        with pytest.raises(ValueError, match="expected MODEL=FORMAT with one of hermes, llama3, mistral"):
            GatewaySettings(tool_format=("a=other",))


FUNCTIONS = [
    Function(name="f", parameters={"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}),
    Function(
        name="g",
        parameters={"type": "object", "$defs": {"T": {"enum": ["a", "b"]}}, "properties": {"t": {"$ref": "#/$defs/T"}}},
    ),
]


class TestForced:
    @pytest.mark.parametrize(
        ("form", "several", "text", "accepted"),
        [
            ("hermes", True, '<tool_call>\n{"name": "f", "arguments": {"x": 4}}\n</tool_call>', True),
            ("hermes", True, '<tool_call>\n{"name": "g", "arguments": {"t": "b"}}\n</tool_call>', True),
            ("hermes", True, '<tool_call>\n{"name": "g", "arguments": {"t": "c"}}\n</tool_call>', False),
            ("hermes", True, '<tool_call>\n{"name": "h", "arguments": {}}\n</tool_call>', False),
            ("hermes", True, '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>', False),
            ("hermes", True, "no", False),
            ("llama3", False, '{"name": "f", "parameters": {"x": 4}}', True),
            ("llama3", False, '{"name": "f", "arguments": {"x": 4}}', False),
            ("mistral", True, '[{"name": "f", "arguments": {"x": 4}}, {"name": "g", "arguments": {"t": "a"}}]', True),
            ("mistral", False, '[{"name": "f", "arguments": {"x": 4}}, {"name": "g", "arguments": {"t": "a"}}]', False),
            ("mistral", False, '[{"name": "f", "arguments": {"x": 4}}]', True),
            ("mistral", False, "[]", False),
        ],
    )
    def test_grammars_accept_calls_of_the_functions_alone(
        self, form: str, several: bool, text: str, accepted: bool
    ) -> None:
        options = forced_options(TOOL_FORMATS[form], FUNCTIONS, several=several)
        assert accepts(options, text) is accepted
        if form == "hermes":
            assert accepts(options, f"{text}\n{text}") is accepted
            assert not accepts(forced_options(TOOL_FORMATS[form], FUNCTIONS, several=False), f"{text}\n{text}")

    def test_definitions_that_differ_are_refused(self) -> None:
        other = Function(name="h", parameters={"type": "object", "$defs": {"T": {"type": "null"}}})
        with pytest.raises(Refusal, match="two functions define 'T'"):
            forced_options(TOOL_FORMATS["hermes"], [*FUNCTIONS, other], several=False)

    @pytest.mark.parametrize(
        ("tools", "choice", "form", "message"),
        [
            (None, "required", "hermes", "'tool_choice' requires tools"),
            (["f"], "auto", None, "has no known format of tool calls"),
            (["f"], "some", "hermes", "expected auto, none, required"),
            (["f"], {"type": "function", "function": {"name": "g"}}, "hermes", "no tool is named 'g'; tools are: f"),
            (["strict"], "auto", "hermes", "strict is supported with tool_choice 'required'"),
            (["other"], "auto", "hermes", "expected tools of type function, got 'web'"),
        ],
    )
    def test_what_is_not_supported_is_refused_by_name(
        self, tools: Any, choice: Any, form: str | None, message: str
    ) -> None:
        known = {
            "f": Tool(function=FUNCTIONS[0]),
            "strict": Tool(function=Function(name="f", strict=True)),
            "other": Tool(type="web", function=FUNCTIONS[0]),
        }
        own = None if form is None else TOOL_FORMATS[form]
        with pytest.raises(Refusal, match=message):
            read_tool_use(None if tools is None else [known[name] for name in tools], choice, None, own, "m")

    def test_response_formats(self) -> None:
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        assert response_options(None) == response_options({"type": "text"}) == {}
        for wanted, sent in (
            ({"type": "object"}, {"type": "json_object"}),
            (schema, {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}),
        ):
            found = json.loads(str(response_options(sent)["guided_json"]))
            jsonschema.Draft202012Validator.check_schema(found)
            assert found == wanted
        for wrong in ({"type": "xml"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {"schema": 1}}):
            with pytest.raises(Refusal, match="'response_format'"):
                response_options(wrong)


def accepts(options: Any, text: str) -> bool:
    """Whether the grammar of guided output allows a text and its end, as the library of the backend decides."""
    from llguidance import LLTokenizer

    tokenizer = LLTokenizer("byte")
    if "guided_json" in options:
        grammar = LLMatcher.grammar_from_json_schema(options["guided_json"])
    else:
        grammar = LLMatcher.grammar_from_lark(options["guided_grammar"])
    matcher = LLMatcher(tokenizer, grammar)
    assert not matcher.is_error(), matcher.get_error()
    return bool(matcher.consume_tokens(tokenizer.tokenize_str(text))) and bool(matcher.is_accepting())
