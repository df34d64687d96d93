"""Options as `x-tidal-` headers: the same as fields of the body, and refused where the body has another value."""

from __future__ import annotations

from typing import Any

import pytest

from testing.gateways import RunningGateway

pytestmark = pytest.mark.server

TENSOR = {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": ["hi"]}
CHAT = {"model": "talker", "messages": [{"role": "user", "content": "hi"}]}
EMBED = {"model": "embedder", "input": "x"}
CLASSIFY = {"model": "intent", "input": "hi"}
#: Path, body, an option of the body, and a header that names another value of it.
CONFLICTS: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, str]]] = [
    ("/v1/embeddings", EMBED, {"dimensions": 4}, {"x-tidal-dimensions": "8"}),
    ("/v1/embeddings", EMBED, {"latency_ms": 7000}, {"x-tidal-latency-ms": "5000"}),
    ("/embed", {"inputs": "x"}, {"dimensions": 4}, {"x-tidal-dimensions": "8"}),
    ("/embed", {"inputs": "x"}, {"prompt_name": "query"}, {"x-tidal-prompt": "document"}),
    ("/embed", {"inputs": "x"}, {"prompt": "query"}, {"x-tidal-prompt": "document"}),
    ("/v1/classify", CLASSIFY, {"top_k": 1}, {"x-tidal-top-k": "2"}),
    ("/v1/chat/completions", CHAT, {"max_completion_tokens": 9}, {"x-tidal-max-tokens": "4"}),
    ("/v2/models/intent/infer", {"inputs": [TENSOR]}, {"parameters": {"utility": 2}}, {"x-tidal-utility": "3"}),
    ("/v2/models/intent/generate", {"text_input": "hi"}, {"utility": 2}, {"x-tidal-utility": "3"}),
]


@pytest.mark.parametrize(("path", "document", "option", "header"), CONFLICTS)
def test_a_header_with_another_value_than_the_body_is_refused(
    gateway: RunningGateway, path: str, document: dict[str, Any], option: dict[str, Any], header: dict[str, str]
) -> None:
    response = gateway.post(path, {**document, **option}, headers=header)
    assert response.status_code == (422 if path == "/embed" else 400), response.text
    (name, value), (sent,) = next(iter(header.items())), option.values()
    own = next(iter(sent.values())) if isinstance(sent, dict) else sent
    assert f"is '{own}' in the body and '{value}' in header {name}; send one" in response.text


@pytest.mark.parametrize(("path", "key"), [("/v1/embeddings", "input"), ("/embed", "inputs")])
def test_dimensions_are_a_field_or_a_header_or_both(gateway: RunningGateway, path: str, key: str) -> None:
    header = {"x-tidal-dimensions": "4"}
    for field, headers in (({"dimensions": 4}, {}), ({}, header), ({"dimensions": 4}, header)):
        found = gateway.post(path, {"model": "embedder", key: "x", **field}, headers=headers).json()
        vector = found["data"][0]["embedding"] if path == "/v1/embeddings" else found[0]
        assert len(vector) == 4, (field, headers)


def test_two_names_of_an_option_may_not_differ(gateway: RunningGateway) -> None:
    document = {"inputs": "x", "prompt_name": "query"}
    differing = gateway.post("/embed", {**document, "prompt": "document"})
    assert (differing.status_code, "'prompt' and 'prompt_name' differ" in differing.text) == (422, True)
    assert gateway.post("/embed", {**document, "prompt": "query"}).status_code == 200


def test_a_boolean_equals_its_text(gateway: RunningGateway) -> None:
    for value, status in (("true", 200), ("false", 400)):
        answer = gateway.post(
            "/v1/chat/completions", {**CHAT, "ignore_eos": True}, headers={"x-tidal-ignore-eos": value}
        )
        assert answer.status_code == status, answer.text


def test_top_k_of_labels_is_no_option_of_the_model(gateway: RunningGateway) -> None:
    """The double has no names of its labels, which `top_k` needs, and returns the options that it received."""
    for field, headers in (({"top_k": 1}, {}), ({}, {"x-tidal-top-k": "1"})):
        answer = gateway.post("/v1/classify", {**CLASSIFY, **field}, headers=headers)
        assert (answer.status_code, "the names of the labels" in answer.text) == (400, True)
    wrong = gateway.post("/v1/classify", CLASSIFY, headers={"x-tidal-top-k": "many"})
    assert "expected a number from 1, got 'many'" in wrong.text
