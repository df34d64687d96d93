"""Requests for a generation, and errors in a stream; streams themselves are tested with a model."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tidal.errors import Cancelled as ServerCancelled
from tidal.errors import Internal, NotFound, TidalError, Unavailable, Unsupported
from tidal.errors import InvalidArgument as ServerInvalidArgument
from tidal.options import CODED_ERRORS, parse_options
from tidal.serving.coded_errors import with_code
from tidal_client.errors import InvalidArgument, ServerError, from_coded, from_stream
from tidal_client.errors import NotFound as ClientNotFound
from tidal_client.errors import Unavailable as ClientUnavailable
from tidal_client.generation import chat_request, generation_request, read_generated
from tidal_client.options import request_parameters


@pytest.mark.parametrize(
    ("stop", "stops"),
    [("a", ("a",)), (["a", "b"], ("a", "b")), ("[x]", ("[x]",)), (["["], ("[",)), (("a",), ("a",))],
)
def test_stops_arrive_unchanged(stop: Any, stops: tuple[str, ...]) -> None:
    assert parse_options(request_parameters({"stop": stop})).stop == stops


@pytest.mark.parametrize("stop", [3, ["a", 3], b"a", {"a"}])
def test_stops_of_another_type(stop: Any) -> None:
    with pytest.raises(InvalidArgument, match="option 'stop': expected a text or a list of texts"):
        request_parameters({"stop": stop})


def test_prompts_are_texts_or_ids() -> None:
    text = generation_request("m", "naïve", stream=True, options={"request_id": "7", "max_tokens": 3})
    assert text.inputs["text_input"].tolist() == ["naïve".encode()]
    assert text.inputs["stream"].tolist() == [True]
    assert text.parameters == {"max_tokens": 3, CODED_ERRORS: True}
    ids = generation_request("m", [1, 2], stream=False, options={})
    assert (ids.inputs["input_ids"].tolist(), ids.inputs["input_ids"].dtype) == ([1, 2], np.int64)
    texts = generation_request("m", ["a", "b"], stream=False, options={"early_stopping": True})
    assert texts.inputs["text_input"].tolist() == [b"a", b"b"]
    assert texts.parameters["early_stopping"] is True
    for wrong in ("\ud800", ["a", 1], ["\ud800"], [2**70], {"a": 1}):
        with pytest.raises(InvalidArgument, match="prompt: "):
            generation_request("m", wrong, stream=False, options={})  # type: ignore[arg-type]


def test_parts_and_the_last() -> None:
    (part,) = read_generated({"text_output": np.array(["ü".encode()], object), "token_ids": np.array([5])})
    assert (part.text, part.tokens, part.finish_reason, part.generated_tokens) == ("ü", (5,), None, None)
    (last,) = read_generated({"finish_reason": np.array([b"eos"], object), "generated_tokens": np.array([3], np.int32)})
    assert (last.text, last.tokens, last.finish_reason, last.generated_tokens) == ("", (), "eos", 3)


def test_texts_of_several_prompts() -> None:
    both = {
        "index": np.array([0, 1]),
        "text_output": np.array([b"ab", b"c"], object),
        "token_ids": np.array([1, 2, 3]),
        "finish_reason": np.array([b"length", b"eos"], object),
        "prompt_tokens": np.array([4, 5]),
        "generated_tokens": np.array([2, 1]),
    }
    first, second = read_generated(both)
    assert (first.index, first.text, first.tokens, first.generated_tokens) == (0, "ab", (1, 2), 2)
    assert (second.index, second.text, second.tokens, second.finish_reason) == (1, "c", (3,), "eos")
    (part,) = read_generated({"index": np.array([1]), "token_ids": np.array([7, 8])})
    assert (part.index, part.tokens) == (1, (7, 8))


def test_messages_are_json() -> None:
    messages = [{"role": "user", "content": "naïve"}]
    request = chat_request("m", messages, tools=({"name": "f"},), stream=True, options={"request_id": "7", "n": 2})
    assert json.loads(request.inputs["messages"][0]) == messages
    assert json.loads(request.inputs["tools"][0]) == [{"name": "f"}]
    assert (request.inputs["stream"].tolist(), request.parameters) == ([True], {"n": 2, CODED_ERRORS: True})
    for wrong in ("hi", ["hi"], [{"role": {1}}], 5, None):
        with pytest.raises(InvalidArgument, match="messages: expected a list of mappings"):
            chat_request("m", wrong, tools=None, stream=False, options={})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="tools: expected a list of mappings"):
        chat_request("m", messages, tools="f", stream=False, options={})  # type: ignore[arg-type]


def test_log_probabilities_of_several_texts() -> None:
    both = {
        "index": np.array([0, 1]),
        "token_ids": np.array([1, 2, 3]),
        "generated_tokens": np.array([2, 1]),
        "logprobs": np.array([-1.0, -2.0, -3.0], np.float32),
        "top_token_ids": np.array([[1, 9], [8, 2], [3, 4]]),
        "top_logprobs": np.array([[-1.0, -4.0], [-0.5, -2.0], [-3.0, -5.0]], np.float32),
    }
    first, second = read_generated(both)
    assert (first.logprobs, second.logprobs) == ((-1.0, -2.0), (-3.0,))
    assert first.top_logprobs == ({1: -1.0, 9: -4.0}, {8: -0.5, 2: -2.0})
    assert second.top_logprobs == ({3: -3.0, 4: -5.0},)


OPTIONS: dict[str, Any] = {
    "min_p": 0.5, "presence_penalty": -1.5, "frequency_penalty": 2, "n": 3, "best_of": 4, "min_tokens": 0,
    "ignore_eos": True, "echo": False, "logprobs": True, "top_logprobs": 20, "guided_regex": "a+",
    "guided_grammar": 'start: "a"', "guided_json": {"type": "object", "properties": {"ü": {}}},
    "chat_template_kwargs": {"a": [1, None]}, "guided_choice": ("yes", '"no"'), "stop_token_ids": (5, 6),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_options_arrive_unchanged(name: str) -> None:
    assert getattr(parse_options(request_parameters({name: OPTIONS[name]})), name) == OPTIONS[name]


def test_biases_arrive_unchanged() -> None:
    sent = request_parameters({"logit_bias": {np.int64(5): -2, 7: 0.5}})
    assert parse_options(sent).logit_bias == ((5, -2.0), (7, 0.5))
    for name, wrong in {"logit_bias": [1], "stop_token_ids": [0.5], "guided_choice": "yes", "guided_json": "{}",
                        "ignore_eos": 1}.items():  # fmt: skip
        with pytest.raises(InvalidArgument, match=f"option '{name}': expected"):
            request_parameters({name: wrong})


@pytest.mark.parametrize("value", [True, False, "never"])
def test_early_stopping_arrives_unchanged(value: Any) -> None:
    assert parse_options(request_parameters({"early_stopping": value})).early_stopping is value
    for wrong in ("always", 1, None.__class__):
        with pytest.raises(InvalidArgument, match="option 'early_stopping': expected True, False or 'never'"):
            request_parameters({"early_stopping": wrong})
    with pytest.raises(InvalidArgument, match="option 'num_beams': expected a whole number, got True"):
        request_parameters({"num_beams": True})


@pytest.mark.parametrize("kind", [ServerInvalidArgument, NotFound, Unavailable, ServerCancelled, Unsupported, Internal])
def test_errors_keep_their_codes(kind: type[TidalError]) -> None:
    for prefix in ("", "[request id: 7] "):
        found = from_stream(prefix + with_code(kind("a [b] sentence\nof two lines")))
        assert found.code == kind.code
        assert str(found) == "a [b] sentence\nof two lines"


def test_tritons_own_messages() -> None:
    assert isinstance(from_stream("Request for unknown model: 'x' is not found"), ClientNotFound)
    assert isinstance(from_stream("Stub process 'x' is not healthy."), ClientUnavailable)
    assert isinstance(from_stream("Request for unknown model: 'x' has no available versions"), ClientUnavailable)
    assert isinstance(from_stream("Failed to process the request(s) for model 'x', message: ValueError"), ServerError)
    assert isinstance(from_stream("unexpected shape for input 'stream'"), InvalidArgument)
    assert from_coded("[SOMETHING] else") is None
    assert from_coded("plain") is None
