from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidal.errors import InvalidArgument
from tidal.options import RequestOptions, parse_options


def test_without_parameters_all_options_are_unset() -> None:
    assert parse_options(None) == parse_options({}) == RequestOptions()


@pytest.mark.parametrize(
    ("raw", "field", "value"),
    [
        ({"latency_ms": 20}, "latency_ms", 20.0),
        ({"latency_ms": 2.5}, "latency_ms", 2.5),
        ({"latency_ms": "2.5"}, "latency_ms", 2.5),
        ({"max_tokens": "16"}, "max_tokens", 16),
        ({"max_tokens": 16.0}, "max_tokens", 16),
        ({"seed": 2**62}, "seed", 2**62),
        ({"task": "sst2"}, "task", "sst2"),
        ({"utility": 0}, "utility", 0.0),
        ({"accuracy": "0.93"}, "accuracy", 0.93),
        ({"max_level": 2.0}, "max_level", 2),
        ({"top_p": "0.9"}, "top_p", 0.9),
        ({"num_beams": "4"}, "num_beams", 4),
        ({"length_penalty": -0.5}, "length_penalty", -0.5),
        ({"early_stopping": True}, "early_stopping", True),
        ({"early_stopping": "False"}, "early_stopping", False),
        ({"early_stopping": "never"}, "early_stopping", "never"),
        ({"ignore_eos": "True"}, "ignore_eos", True),
        ({"stop_token_ids": 7}, "stop_token_ids", (7,)),
        ({"stop_token_ids": "7"}, "stop_token_ids", (7,)),
        ({"stop_token_ids": "[7, 8]"}, "stop_token_ids", (7, 8)),
        ({"logit_bias": '{"5": -2, "6": 0.5}'}, "logit_bias", ((5, -2.0), (6, 0.5))),
        ({"guided_choice": '["a", "b"]'}, "guided_choice", ("a", "b")),
        ({"guided_json": '{"type": "object"}'}, "guided_json", {"type": "object"}),
        ({"stop": "\n\n"}, "stop", ("\n\n",)),
        ({"stop": '["END", "[stop]"]'}, "stop", ("END", "[stop]")),
    ],
)
def test_accepts_int_float_and_numeric_text(raw: dict[str, object], field: str, value: object) -> None:
    assert getattr(parse_options(raw), field) == value


@pytest.mark.parametrize(
    ("raw", "parts"),
    [
        ({"stream": True}, ["unknown request option 'stream'", "this model does not generate text", "leave it out"]),
        ({"latency": 5}, ["unknown request option 'latency'", "did you mean 'latency_ms'?", "utility"]),
        ({"latency_ms": 0}, ["'latency_ms'", "greater than 0"]),
        ({"latency_ms": -1.0}, ["'latency_ms'"]),
        ({"latency_ms": float("nan")}, ["'latency_ms'", "finite"]),
        ({"latency_ms": "soon"}, ["'latency_ms'", "'soon'", "number"]),
        ({"latency_ms": True}, ["'latency_ms'", "boolean"]),
        ({"max_tokens": 1.5}, ["'max_tokens'", "whole number", "1.5"]),
        ({"task": 3}, ["'task'", "string"]),
        ({"task": ""}, ["'task'", "at least 1"]),
        ({"accuracy": 93}, ["'accuracy'", "less than or equal to 1"]),
        ({"max_level": 0}, ["'max_level'", "greater than or equal to 1"]),
        ({"max_level": 1.5}, ["'max_level'", "whole number", "1.5"]),
        ({"top_k": -1, "seed": -1}, ["'top_k'", "'seed'"]),
        ({"top_p": 0}, ["'top_p'", "greater than 0"]),
        ({"repetition_penalty": 0}, ["'repetition_penalty'", "greater than 0"]),
        ({"num_beams": 0}, ["'num_beams'", "greater than or equal to 1"]),
        ({"length_penalty": 11}, ["'length_penalty'", "less than or equal to 10"]),
        ({"early_stopping": 1}, ["'early_stopping'", "true, false or 'never'", "'1'"]),
        ({"early_stopping": "always"}, ["'early_stopping'", "'always'"]),
        ({"stop": 3}, ["'stop'", "expected a text, got int"]),
        ({"stop": ""}, ["'stop'", "at least 1 character"]),
        ({"stop": "[a"}, ["'stop'", "begins with '['"]),
        ({"stop": "[1]"}, ["'stop'", "expected texts"]),
        ({"stop": "[]"}, ["'stop'", "1 to 8 texts"]),
        ({"stop": "x" * 257}, ["'stop'", "at most 256 characters"]),
        ({"stop": "[" * 100_000}, ["'stop'", "expected a JSON list"]),
        ({"ignore_eos": 1}, ["'ignore_eos'", "expected true or false, got '1'"]),
        ({"min_p": 2}, ["'min_p'", "less than or equal to 1"]),
        ({"presence_penalty": 3}, ["'presence_penalty'", "less than or equal to 2"]),
        ({"top_logprobs": 21}, ["'top_logprobs'", "less than or equal to 20"]),
        ({"stop_token_ids": "[]"}, ["'stop_token_ids'", "1 to 64 token ids"]),
        ({"stop_token_ids": "[true]"}, ["'stop_token_ids'", "got a boolean"]),
        ({"stop_token_ids": "7,8"}, ["'stop_token_ids'", "expected a number"]),
        ({"logit_bias": "{}"}, ["'logit_bias'", "1 to 1024 biases"]),
        ({"logit_bias": '{"a": 1}'}, ["'logit_bias'", "token ids as keys, got 'a'"]),
        ({"logit_bias": '{"1": 101}'}, ["'logit_bias'", "from -100 to 100, got 101"]),
        ({"logit_bias": '{"1": true}'}, ["'logit_bias'", "got True"]),
        ({"logit_bias": '{"1": 1, "01": 2}'}, ["'logit_bias'", "each token id once"]),
        ({"guided_json": "[]"}, ["'guided_json'", "expected a JSON object"]),
        ({"guided_json": 5}, ["'guided_json'", "JSON text, got int"]),
        ({"guided_json": '"' + "x" * 70_000 + '"'}, ["'guided_json'", "at most 65536 characters"]),
        ({"guided_choice": "[1]"}, ["'guided_choice'", "at least 1 character"]),
        ({"guided_regex": ""}, ["'guided_regex'", "at least 1"]),
        ({"utility": "1" * 1000}, ["'utility'", "at most 64 characters, got 1000"]),
    ],
)
def test_refusals_name_the_option_and_what_is_accepted(raw: dict[str, object], parts: list[str]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_options(raw)
    for part in parts:
        assert part in str(caught.value)


def test_only_the_beginning_of_a_long_name_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def close(name: str, *_: object, **__: object) -> list[str]:
        compared.append(name)
        return []

    monkeypatch.setattr("difflib.get_close_matches", close)
    with pytest.raises(InvalidArgument, match=r"unknown request option 'x{80}': accepted"):
        parse_options({"x" * 10_000_000: 1})
    assert compared == ["x" * 200]


def test_tritons_own_parameters_are_left_alone() -> None:
    raw = {"id": "7", "priority": 1, "timeout": 5, "triton_enable_empty_final_response": True, "latency_ms": 3}
    assert parse_options(raw) == RequestOptions(latency_ms=3)


@settings(max_examples=50)
@given(
    st.dictionaries(st.text(max_size=12), st.one_of(st.integers(), st.floats(), st.booleans(), st.text(max_size=20)))
)
def test_any_parameters_are_accepted_or_refused_in_one_sentence(raw: dict[str, object]) -> None:
    try:
        parse_options(raw)
    except InvalidArgument as error:
        assert "request option" in str(error)
