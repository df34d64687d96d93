"""The clients' methods for encoders against a stand-in for such models on a real tritonserver, over four transports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.client.conftest import MAX_ROWS, ProbeServer
from tests.client.embeddings import embedding_of
from tidal_client import (
    AsyncClient,
    Client,
    Embeddings,
    Entity,
    InvalidArgument,
    MaskPrediction,
    NotFound,
    Ranked,
    Unavailable,
)

pytestmark = pytest.mark.server

Call = Callable[..., Any]


TEXTS = [f"{i} {'x' * (i * 7 % 50)} 🌊" for i in range(3 * MAX_ROWS + 5)]


def test_embeddings_are_in_the_order_of_the_texts(call: Call, server: ProbeServer) -> None:
    server.rows_log.write_text("")
    found = call("embed", "embedder", TEXTS)
    assert isinstance(found, Embeddings)
    assert (found.dtype, found.dimensions, len(found)) == ("float32", 16, len(TEXTS))
    np.testing.assert_array_equal(np.asarray(found), np.stack([embedding_of(text) for text in TEXTS]))
    assert sorted(map(int, server.rows_log.read_text().split())) == [5, *[MAX_ROWS] * 3]


@pytest.mark.parametrize(
    ("dtype", "elements", "expected"),
    [
        ("float16", np.float16, lambda v: v.astype(np.float16)),
        ("int8", np.int8, lambda v: np.round(v * 127).astype(np.int8)),
        ("binary", np.uint8, lambda v: np.packbits(v > 0)),
    ],
)
def test_each_element_type_is_an_output_of_its_own(call: Call, dtype: str, elements: Any, expected: Any) -> None:
    found = call("embed", "embedder", ["a", "b"], dtype=dtype)
    assert (found.array.dtype, found.dimensions) == (elements, 16)
    np.testing.assert_array_equal(found.array, [expected(embedding_of("a")), expected(embedding_of("b"))])


def test_prompt_and_dimensions_arrive(call: Call) -> None:
    found = call("embed", "embedder", ["a"], prompt="query: ", dimensions=4)
    np.testing.assert_allclose(found.array, [embedding_of("query: a", 4)])


def test_no_texts_are_no_request(call: Call) -> None:
    found = call("embed", "no such model", [])
    assert (found.array.shape, found.array.dtype) == ((0, 0), np.float32)
    assert call("sparse_embed", "no such model", []) == []
    assert call("entities_many", "no such model", []) == []
    assert call("answer_many", "no such model", [], []) == []
    assert call("score", "no such model", []).shape == (0,)


def test_ten_thousand_documents_are_ranked(url: str, server: ProbeServer) -> None:
    server.rows_log.write_text("")
    documents = ["d" * (i * 7919 % 211) for i in range(10_000)]
    with Client(url) as client:
        found = client.rerank("scorer", "a query", documents, top_n=300)
    expected = sorted(range(10_000), key=lambda i: (-len(documents[i]), i))[:300]
    assert found == [Ranked(i, float(len(documents[i])), documents[i]) for i in expected]
    rows = [int(line) for line in server.rows_log.read_text().split()]
    assert (sum(rows), max(rows), len(rows)) == (10_000, MAX_ROWS, 10_000 // MAX_ROWS)


def test_rerank_returns_all_documents_or_the_best(call: Call) -> None:
    documents = ["three", "a", "four four", "b"]
    found = call("rerank", "scorer", "x", documents)
    assert [(each.index, each.score, each.document) for each in found] == [
        (2, 8.0, "four four"), (0, 4.0, "three"), (1, 0.0, "a"), (3, 0.0, "b"),
    ]  # fmt: skip
    assert call("rerank", "scorer", "x", documents, top_n=1) == found[:1]
    assert call("rerank", "scorer", "x", documents, top_n=9) == found


def test_scores_of_texts_and_pairs(call: Call) -> None:
    found = call("score", "scorer", ["xx", "a"], pairs=["four", "b"])
    assert (found.dtype, found.tolist()) == (np.float32, [2.0, 1.0])
    assert call("score", "scorer", ["xx", "a"]).tolist() == [-2.0, 0.0]


@pytest.mark.parametrize("text", ["in 🌊 Lima Ahmed", "e\u0301 Oslo", "nothing"])
def test_offsets_of_entities_are_characters(call: Call, text: str) -> None:
    found = call("entities", "marker", text)
    assert [text[each.start : each.end] for each in found] == [word for word in text.split() if word.istitle()]
    assert all(each == Entity("NAME", 0.5, each.start, each.end, text[each.start : each.end]) for each in found)
    assert call("entities_many", "marker", [text, "Lima"])[0] == found
    assert call("tokens", "marker", text) == found


def test_answers_have_candidates(call: Call) -> None:
    found = call("answer", "answerer", "where is Lima or Oslonia", "he 🌊 flew to Lima and Oslonia", top_k=2)
    assert (found.text, found.start, found.end) == ("Oslonia", 22, 29)
    assert [each.text for each in found.candidates] == ["Oslonia", "Lima"]
    nothing = call("answer", "answerer", "where", "nothing")
    assert (nothing.text, nothing.score, nothing.candidates) == ("", 0.0, ())
    many = call("answer_many", "answerer", ["a Lima", "b"], ["Lima", "b"])
    assert [each.text for each in many] == ["Lima", "b"]


def test_masks_and_sparse_embeddings(call: Call) -> None:
    found = call("predict_masks", "filler", "a [MASK] and a [MASK]", top_k=1)
    assert found == ((MaskPrediction("0", 0, 0.5),),) * 2
    short, long = call("sparse_embed", "splade", ["ba", "abcd"])
    assert short.as_dict() == {97: 48.5, 98: 49.0}
    assert (long.indices.tolist(), len(long)) == ([97, 98, 99, 100], 4)


def test_labels_of_a_multi_label_model(call: Call) -> None:
    found = call("classify", "labeler", "short and considerable", threshold=0.4)
    assert (found.label, found.labels, found.other) == ("most", ("short", "considerable"), {})
    assert call("classify", "labeler", "a").labels == ()


@pytest.mark.parametrize("position", [0, 11, 20])
def test_an_error_names_the_text_in_the_callers_list(call: Call, position: int) -> None:
    texts = [*TEXTS[:position], "refuse", *TEXTS[position : MAX_ROWS * 3]]
    with pytest.raises(InvalidArgument, match=rf"^texts\[{position}\] is empty; accepted: a text$"):
        call("embed", "embedder", texts)
    with pytest.raises(InvalidArgument, match=rf"^documents\[{position}\] is empty"):
        call("rerank", "scorer", "a", texts)
    with pytest.raises(InvalidArgument, match=r"^query is empty"):
        call("rerank", "scorer", "refuse", TEXTS)


def test_bad_arguments_are_refused_by_name(call: Call) -> None:
    refused = [
        (("rerank", "scorer", "a", []), {}, r"documents: expected at least one document, got an empty list"),
        (("rerank", "scorer", "a", "b"), {}, r"documents: expected a list of texts, got a single text"),
        (("rerank", "scorer", b"a", ["b"]), {}, r"query: expected a text, got bytes; decode it first"),
        (("rerank", "scorer", "a", ["b"]), {"top_n": 0}, r"top_n: expected a whole number of at least 1.*, got 0"),
        (("embed", "embedder", ["a", b"\xff"]), {}, r"texts\[1\]: expected a text, got bytes; decode it first"),
        (("embed", "embedder", ["a", "\ud800"]), {}, r"texts\[1\]: not valid Unicode"),
        (("embed", "embedder", "a"), {}, r"texts: expected a list of texts"),
        (("embed", "embedder", ["a"]), {"dtype": "floot16"}, r"got 'floot16'; did you mean 'float16'\?$"),
        (("embed", "embedder", ["a"]), {"dtype": "q"}, r"expected float32, float16, int8 or binary, got 'q'$"),
        (("embed", "embedder", ["a"]), {"dimensions": "4"}, r"option 'dimensions': expected a whole number"),
        (("embed", "embedder", ["a"]), {"prompt": 3}, r"option 'prompt': expected text"),
        (("answer_many", "answerer", ["a"], []), {}, r"contexts: expected one per question \(1\), got 0"),
        (("score", "scorer", ["a"]), {"pairs": []}, r"pairs: expected one per text \(1\), got 0"),
    ]
    for arguments, options, message in refused:
        with pytest.raises(InvalidArgument, match=message):
            call(*arguments, **options)


def test_another_kind_of_model_is_named(call: Call) -> None:
    with pytest.raises(
        InvalidArgument, match=r"'probe' has no output 'embedding'; its outputs are .*Client.classify or"
    ):
        call("embed", "probe", ["a"])
    with pytest.raises(
        InvalidArgument, match=r"'embedder' has no output 'score'.*: it embeds texts, use Client.embed or"
    ):
        call("rerank", "embedder", "a", ["b"])
    with pytest.raises(InvalidArgument, match="'splade' has no output 'embedding_int8'; its outputs are indices,"):
        call("embed", "splade", ["a"], dtype="int8")
    with pytest.raises(NotFound, match="nope"):
        call("embed", "nope", ["a", "b"])


def test_after_an_error_no_further_request_is_sent(url: str, server: ProbeServer) -> None:
    server.rows_log.write_text("")
    texts = ["unavailable", *(f"slow {i}" for i in range(40 * MAX_ROWS))]
    with Client(url, concurrency=2) as client, pytest.raises(Unavailable):
        # The failing text is the longest, so it is in the first request.
        client.embed("embedder", [text.ljust(8) if text != "unavailable" else text for text in texts])
    # Of 41 requests, each of which takes 0.4 s: few are sent before the client has read the error.
    assert len(server.rows_log.read_text().split()) <= 20


def test_several_requests_are_in_flight(url: str, server: ProbeServer) -> None:
    async def run() -> None:
        async with AsyncClient(url, concurrency=3) as client:
            found = await asyncio.gather(*(client.embed("embedder", TEXTS) for _ in range(3)))
            for each in found:
                np.testing.assert_array_equal(each.array, found[0].array)

    asyncio.run(run())
    for concurrency in (0, True, 1.5):
        with pytest.raises(InvalidArgument, match="concurrency: expected a whole number of at least 1"):
            Client(url, concurrency=concurrency)  # type: ignore[arg-type]
