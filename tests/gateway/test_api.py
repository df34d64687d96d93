"""The APIs of the gateway over a real server, compared with what the models compute, and their errors."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from typing import Any, ClassVar

import httpx
import numpy as np
import pytest
import tritonclient.http

from testing.decoders import VOCABULARY
from testing.gateways import RunningGateway
from testing.waiting import until
from tests.gateway.conftest import Backend
from tests.gateway.embeddings import embedding
from tidal_client import Client

pytestmark = pytest.mark.server

TEXTS = ["a b c", "naïve cat", "x"]


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=30) as found:
        yield found


def events(response: httpx.Response) -> list[Any]:
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


class TestEmbeddings:
    @pytest.mark.parametrize("form", ["float", "base64"])
    def test_of_more_texts_than_a_batch(self, client: httpx.Client, form: str) -> None:
        texts = [f"{text} {number}" for number in range(50) for text in TEXTS]
        document = {"model": "embedder", "input": texts, "encoding_format": form, "dimensions": 5}
        found = client.post("/v1/embeddings", json=document).json()
        assert [row["index"] for row in found["data"]] == list(range(150))
        rows = [row["embedding"] for row in found["data"]]
        if form == "base64":
            rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in rows]
        np.testing.assert_allclose(rows, [embedding(text, 5) for text in texts], atol=1e-6)
        tokens = sum(len(text.split()) for text in texts)
        assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}

    def test_one_text_and_tokens(self, client: httpx.Client) -> None:
        def first(value: Any) -> Any:
            return client.post("/v1/embeddings", json={"model": "embedder", "input": value}).json()["data"]

        np.testing.assert_allclose(first("a b")[0]["embedding"], embedding("a b"), atol=1e-6)
        np.testing.assert_allclose(first([7, 8])[0]["embedding"], embedding("7 8"), atol=1e-6)
        rows = [each["embedding"] for each in first([[7], [8, 9, 1]])]
        np.testing.assert_allclose(rows, [embedding("7"), embedding("8 9 1")], atol=1e-6)

    def test_tei(self, client: httpx.Client) -> None:
        found = client.post("/embed", json={"inputs": TEXTS, "normalize": True}).json()
        np.testing.assert_allclose(found, [embedding(text) for text in TEXTS], atol=1e-6)
        np.testing.assert_allclose(client.post("/embed", json={"inputs": "x"}).json(), [embedding("x")], atol=1e-6)


class TestReranking:
    DOCUMENTS = ("x y", "a b", "a y")

    @pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
    def test_sorted_by_score(self, client: httpx.Client, path: str) -> None:
        document = {"model": "reranker", "query": "a b c", "documents": [*self.DOCUMENTS[:2], {"text": "a y"}]}
        found = client.post(path, json=document).json()
        scores = [(each["index"], each["relevance_score"]) for each in found["results"]]
        assert scores == [(1, 1.0), (2, 0.5), (0, 0.0)]
        assert found["usage"]["total_tokens"] == 15
        best = client.post(path, json={**document, "top_n": 1, "return_documents": True}).json()["results"]
        assert best == [{"index": 1, "relevance_score": 1.0, "document": {"text": "a b"}}]

    def test_tei(self, client: httpx.Client) -> None:
        document = {"query": "a b c", "texts": self.DOCUMENTS, "return_text": True}
        found = client.post("/rerank", json=document).json()
        assert found[0] == {"index": 1, "score": 1.0, "text": "a b"}
        raw = client.post("/rerank", json={**document, "raw_scores": True}).json()
        assert [each["score"] for each in raw] == [5.0, 0.0, -5.0]


class TestClassification:
    def test_texts_pairs_and_options(self, client: httpx.Client) -> None:
        document = {"model": "intent", "input": ["hi", {"text": "a longer text"}]}
        found = client.post("/v1/classify", json=document).json()["data"]
        assert [each["label"] for each in found] == ["short", "long"]
        np.testing.assert_allclose([sum(each["probs"]) for each in found], 1, atol=1e-5)
        assert found[0]["score"] == pytest.approx(max(found[0]["probs"]))
        pair = {"model": "intent", "input": {"text": "hello", "pair": "hello world"}}
        assert client.post("/v1/classify", json=pair).json()["data"][0]["label"] == "long"

    def test_a_task_is_part_of_the_model_or_an_option(self, client: httpx.Client) -> None:
        for document, headers in (
            ({"model": "intent/mood", "latency_ms": 900}, {}),
            ({"model": "intent", "task": "mood"}, {"x-tidal-latency-ms": "900"}),
            ({"model": "intent/mood", "task": "mood", "latency_ms": 900}, {"x-tidal-latency-ms": "900"}),
        ):
            response = client.post("/v1/classify", json={**document, "input": "hi"}, headers=headers)
            options = json.loads(response.json()["data"][0]["label"].removeprefix("short "))
            assert options["task"] == "mood"
            assert float(options["latency_ms"]) == 900

    def test_images_as_json_and_form(self, client: httpx.Client) -> None:
        image, longer = base64.b64encode(b"1234").decode(), base64.b64encode(b"1" * 20).decode()
        document = {"model": "digits", "input": [{"image": image}, {"image": f"data:image/png;base64,{longer}"}]}
        found = client.post("/v1/classify", json=document).json()["data"]
        assert [each["label"] for each in found] == ["short", "long"]
        files = [("image", ("a.png", b"1234")), ("image", ("b.png", b"1" * 20))]
        form = client.post("/v1/classify", data={"model": "digits", "latency_ms": "5000"}, files=files).json()["data"]
        assert [each["label"].partition(" ")[0] for each in form] == ["short", "long"]
        assert '"latency_ms": "5000"' in form[0]["label"]

    def test_tei_predict(self, client: httpx.Client) -> None:
        one = client.post("/predict", json={"inputs": "hi"}).json()
        assert one[0]["label"] == "short"
        assert client.post("/predict", json={"inputs": [["hi"], ["a longer text"]]}).json()[1][0]["label"] == "long"
        pair = client.post("/predict", json={"inputs": ["hello", "hello world"]}).json()
        assert pair[0]["label"] == "long"
        raw = client.post("/predict", json={"inputs": "hi", "raw_scores": True}).json()
        assert raw[0]["score"] == 8.0


class TestCompletions:
    def test_equal_those_of_the_client(self, client: httpx.Client, backend: Backend) -> None:
        prompts = ["hello", "the cat"]
        document = {"model": "writer", "prompt": prompts, "max_tokens": 9, "stop": ["\n", "["], "temperature": 0}
        found = client.post("/v1/completions", json=document).json()
        with Client(f"grpc://{backend.served.report['grpc']}") as direct:
            expected = [direct.generate("writer", each, max_tokens=9, stop=["\n", "["]) for each in prompts]
        assert [each["text"] for each in found["choices"]] == [each.text for each in expected]
        reasons = {"eos": "stop", "stop": "stop", "length": "length"}
        assert [each["finish_reason"] for each in found["choices"]] == [reasons[str(e.finish_reason)] for e in expected]
        generated = sum(len(each.tokens) for each in expected)
        read = sum(len(each.encode()) for each in prompts)
        assert found["usage"] == {
            "prompt_tokens": read,
            "completion_tokens": generated,
            "total_tokens": read + generated,
            "prompt_tokens_details": {"cached_tokens": 0},
        }

    def test_cached_tokens(self, client: httpx.Client) -> None:
        document = {"model": "writer", "prompt": "a prompt that is sent twice", "max_tokens": 3}
        first, second = (client.post("/v1/completions", json=document).json()["usage"] for _ in range(2))
        assert first["prompt_tokens_details"] == {"cached_tokens": 0}
        # All but the last token, whose logits are needed.
        assert second["prompt_tokens_details"] == {"cached_tokens": second["prompt_tokens"] - 1}

    def test_streams_are_the_parts_of_the_whole(self, client: httpx.Client) -> None:
        document = {"model": "writer", "prompt": ["hello", "x"], "n": 2, "max_tokens": 6, "seed": 5, "temperature": 1}
        whole = client.post("/v1/completions", json=document).json()
        options = {"stream": True, "stream_options": {"include_usage": True}}
        found = events(client.post("/v1/completions", json={**document, **options}))
        texts = [
            "".join(each["choices"][0]["text"] for each in found[:-2] if each["choices"][0]["index"] == index)
            for index in range(4)
        ]
        assert texts == [each["text"] for each in whole["choices"]]
        assert texts[0] != texts[1]  # each choice has a seed of its own
        assert found[-2]["usage"] == whole["usage"]
        assert whole["usage"]["prompt_tokens"] == 6
        assert all(each["usage"] is None for each in found[:-2])
        assert found[-1] == "[DONE]"

    def test_token_ids(self, client: httpx.Client) -> None:
        rng = random.Random(4)
        rows = [[rng.randrange(VOCABULARY) for _ in range(5)] for _ in range(2)]
        document = {"model": "writer", "max_tokens": 4}
        both = client.post("/v1/completions", json={**document, "prompt": rows}).json()["choices"]
        each = [client.post("/v1/completions", json={**document, "prompt": row}).json()["choices"][0] for row in rows]
        assert [row["text"] for row in both] == [row["text"] for row in each]


class TestChat:
    DOCUMENT: ClassVar[dict[str, Any]] = {
        "model": "talker",
        "messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}],
        "max_completion_tokens": 50,
    }
    TEXT = '2 messages, 0 tools, hi {"max_tokens": 50}'

    def test_whole(self, client: httpx.Client) -> None:
        found = client.post("/v1/chat/completions", json=self.DOCUMENT).json()
        assert found["choices"][0]["message"] == {"role": "assistant", "content": self.TEXT, "refusal": None}
        assert found["choices"][0]["finish_reason"] == "stop"
        assert found["usage"]["prompt_tokens"] == 2

    def test_streamed(self, client: httpx.Client) -> None:
        found = events(client.post("/v1/chat/completions", json={**self.DOCUMENT, "stream": True, "n": 2}))
        chunks = [each["choices"][0] for each in found[:-1]]
        for index in (0, 1):
            own = [each for each in chunks if each["index"] == index]
            assert "".join(each["delta"]["content"] for each in own) == self.TEXT
            assert own[0]["delta"]["role"] == "assistant"
            assert [each["finish_reason"] for each in own] == [None] * (len(own) - 1) + ["stop"]
        assert found[-1] == "[DONE]"

    def test_tools_are_passed_on_unless_none_may_be_called(self, client: httpx.Client) -> None:
        document = {**self.DOCUMENT, "tools": [{"type": "function", "function": {"name": "f"}}]}
        for choice, count in ((None, 1), ("auto", 1), ("none", 0)):
            found = client.post("/v1/chat/completions", json={**document, "tool_choice": choice}).json()
            assert f"{count} tools" in found["choices"][0]["message"]["content"]


BAD: list[tuple[str, Any, int, str]] = [
    ("/v1/embeddings", {"model": "embedder"}, 400, "'input' is missing"),
    ("/v1/embeddings", {"model": "embedder", "input": []}, 400, "'input'"),
    ("/v1/embeddings", {"model": "embedder", "input": [""] * 3000}, 400, "max_inputs, 2048"),
    ("/v1/embeddings", {"model": "embedder", "input": [[]]}, 400, "1 or more token ids"),
    ("/v1/embeddings", {"model": "embedder", "input": [[2**40]]}, 400, "token ids"),
    ("/v1/embeddings", {"model": "embedder", "input": "x", "encoding": "float"}, 400, "did you mean 'encoding_format'"),
    ("/v1/embeddings", {"model": "intent", "input": "x"}, 400, "is not for embedding; models that are: embedder"),
    ("/v1/embeddings", {"model": "nope", "input": "x"}, 404, "no server has the model 'nope'"),
    ("/v1/embeddings", {"model": "embedder", "input": "error INVALID_ARG wrong text"}, 400, "wrong text"),
    ("/v1/embeddings", {"model": "embedder", "input": "error INTERNAL broken"}, 500, "broken"),
    (
        "/v1/embeddings",
        {"model": "embedder", "input": "error UNAVAILABLE the deadline of 5 ms"},
        504,
        "deadline",
    ),
    ("/v1/embeddings", {"model": "embedder", "input": "error UNAVAILABLE max_queue_size is 5"}, 429, "max_queue_size"),
    ("/v1/rerank", {"model": "reranker", "query": "x", "documents": []}, 400, "0 inputs"),
    ("/v1/rerank", {"model": "reranker", "query": "", "documents": ["x"]}, 400, "'query'"),
    ("/v1/rerank", {"model": "reranker", "query": "x", "documents": ["x"], "max_tokens_per_doc": 5}, 400, "max_tokens"),
    ("/rerank", {"query": "x", "texts": ["x"], "truncate": True}, 422, "'truncate' is not supported"),
    ("/predict", {"inputs": [["a"], ["a", "b"]]}, 422, "mixes texts and pairs"),
    ("/predict", {"inputs": []}, 422, "'inputs' has 0 inputs"),
    ("/embed", {"inputs": "x", "normalize": False}, 422, "'normalize' is not supported"),
    ("/v1/classify", {"model": "intent", "input": {"image": "aGk="}}, 400, "is not for image classification"),
    ("/v1/classify", {"model": "digits", "input": {"image": "?"}}, 400, "base64"),
    ("/v1/classify", {"model": "intent", "input": ["x", {"image": "aGk="}]}, 400, "mixes texts and images"),
    (
        "/v1/classify",
        {"model": "intent/a", "task": "b", "input": "x"},
        400,
        "model 'intent/a' names the task 'a', and the option task is 'b'; send one of them",
    ),
    ("/v1/completions", {"model": "writer", "prompt": "x", "resume": "id"}, 400, "'resume' is not supported"),
    ("/v1/completions", {"model": "writer", "prompt": "x", "logprobs": 21}, 400, "'logprobs': expected less than"),
    ("/v1/completions", {"model": "writer", "prompt": "x", "temperature": -1}, 400, "'temperature'"),
    ("/v1/completions", {"model": "writer", "prompt": "x", "n": 1000}, 400, "max_choices, 128"),
    ("/v1/completions", {"model": "writer", "prompt": "x", "stream_options": {}}, 400, "requires stream: true"),
    ("/v1/completions", {"model": "writer", "prompt": "x", "stream": True, "top_p": 7}, 400, "'top_p'"),
    ("/v1/completions", {"model": "writer", "prompt": "x", "seed": 2**70}, 400, "64 bits"),
    ("/v1/completions", {"model": "writer", "prompt": "x", "stop": [1]}, 400, "'stop'"),
    ("/v1/chat/completions", {"model": "talker", "messages": []}, 400, "'messages'"),
    ("/v1/chat/completions", {"model": "talker", "messages": [{"content": "x"}]}, 400, "'messages'"),
    ("/v1/chat/completions", {**TestChat.DOCUMENT, "max_tokens": 4}, 400, "differ"),
    ("/v1/chat/completions", {**TestChat.DOCUMENT, "tool_choice": "required"}, 400, "'tool_choice' requires tools"),
    ("/v1/chat/completions", {**TestChat.DOCUMENT, "logprobs": True}, 400, "has no output 'logprobs'"),
    ("/v1/chat/completions", {**TestChat.DOCUMENT, "top_logprobs": 2}, 400, "requires logprobs: true"),
    ("/v2/models/intent/infer", {}, 400, "'inputs' is missing"),
    ("/v2/models/nope/infer", {}, 404, "no server has the model"),
    ("/v2/models/intent/infer", {"inputs": [{"name": "a"}]}, 400, "datatype"),
    ("/v2/models/writer/infer", {"inputs": [{}], "x": 1}, 400, "unknown field 'x'"),
    ("/v1/nothing", {}, 404, "unknown path /v1/nothing"),
]


class TestErrors:
    @pytest.mark.parametrize(("path", "document", "status", "message"), BAD)
    def test_have_the_shape_of_their_api(
        self, client: httpx.Client, path: str, document: Any, status: int, message: str
    ) -> None:
        response = client.post(path, json=document)
        found = response.json()
        assert response.status_code == status, found
        sentence = found.get("message", found.get("error"))
        if path.startswith("/v1/") and "rerank" not in path:
            assert set(found["error"]) == {"message", "type", "param", "code"}
            sentence = found["error"]["message"]
        assert message in sentence
        if status == 429:
            assert int(response.headers["retry-after"]) >= 1

    @pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"a":' * 5000])
    def test_bodies_that_are_no_object(self, client: httpx.Client, body: bytes) -> None:
        for path in ("/v1/embeddings", "/v1/chat/completions", "/v2/models/intent/infer", "/v2/models/intent/generate"):
            assert client.post(path, content=body).status_code == 400

    def test_unknown_headers_are_refused(self, client: httpx.Client) -> None:
        document = {"model": "embedder", "input": "x"}
        response = client.post("/v1/embeddings", json=document, headers={"x-tidal-latncy-ms": "5"})
        assert "did you mean 'x-tidal-latency-ms'" in response.json()["error"]["message"]
        both = {**document, "latency_ms": 7}
        differing = client.post("/v1/embeddings", json=both, headers={"x-tidal-latency-ms": "5"})
        assert differing.status_code == 400

    def test_admin_endpoints_are_not_there(self, client: httpx.Client) -> None:
        for path in ("/v2/repository/index", "/v2/repository/models/intent/unload", "/v2/logging", "/v2/trace/setting"):
            assert client.post(path, json={}).status_code == 404
        assert client.get("/v2/systemsharedmemory/status").status_code == 404


class TestKServe:
    def test_the_client_of_triton(self, gateway: RunningGateway) -> None:
        """tritonclient sends binary tensors and reads them back; with JSON the answer is the same."""
        client = tritonclient.http.InferenceServerClient(gateway.url.removeprefix("http://"))
        text = tritonclient.http.InferInput("text_input", [2, 1], "BYTES")
        asked = [tritonclient.http.InferRequestedOutput("logits", binary_data=binary) for binary in (True, False)]
        found = []
        for binary, output in ((True, asked[0]), (False, asked[1])):
            text.set_data_from_numpy(np.array([[b"hi"], ["naïve".encode()]], object), binary_data=binary)
            result = client.infer("intent", [text], outputs=[output], request_id="mine", parameters={"utility": 2})
            assert result.get_response()["id"] == "mine"
            assert ("data" in result.get_output("logits")) is not binary
            found.append(result.as_numpy("logits"))
        np.testing.assert_array_equal(found[0], [[8, -8], [5, -5]])
        np.testing.assert_array_equal(found[0], found[1])
        everything = client.infer("intent", [text])
        assert everything.as_numpy("label")[0, 0] == b"short"
        assert client.is_server_ready()
        assert client.is_server_live()
        assert client.is_model_ready("intent")
        assert client.get_model_metadata("intent")["inputs"][0]["name"] == "text_input"
        assert client.get_model_config("intent")["max_batch_size"] == 64
        statistics = client.get_inference_statistics("intent")["model_stats"][0]
        assert statistics["version"] == "1"
        assert statistics["inference_count"] >= 1
        client.close()

    def test_generate(self, client: httpx.Client) -> None:
        whole = client.post("/v2/models/writer/generate", json={"text_input": "hello", "max_tokens": 5}).json()
        streamed = client.post(
            "/v2/models/writer/generate_stream", json={"text_input": "hello", "max_tokens": 5, "stream": True}
        )
        parts = [json.loads(line.removeprefix("data: ")) for line in streamed.text.split("\n\n") if line]
        assert "".join(each["text_output"] for each in parts) == whole["text_output"]
        assert whole["generated_tokens"] == 5
        one = client.post("/v2/models/intent/generate", json={"text_input": "hello"}).json()
        assert one["label"] == "short"

    @pytest.mark.parametrize(
        ("tensor", "message"),
        [
            ({"name": "text_input", "shape": [1, 1], "datatype": "TEXT", "data": ["a"]}, "datatype is 'TEXT'"),
            ({"name": "text_input", "shape": [2, 1], "datatype": "BYTES", "data": ["a"]}, "data has 1 elements"),
            ({"name": "text_input", "shape": [-1], "datatype": "BYTES", "data": ["a"]}, "shape is [-1]"),
            ({"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": [1]}, "expected texts"),
            ({"name": "input_ids", "shape": [1, 1], "datatype": "INT64", "data": [1.5]}, "not of type INT64"),
            ({"name": "input_ids", "shape": [1, 1], "datatype": "INT8", "data": [300]}, "not of type INT8"),
            ({"name": "input_ids", "shape": [1, 1], "datatype": "INT64", "data": ["1"]}, "data has texts"),
            (
                {"name": "x", "shape": [1], "datatype": "INT64", "parameters": {"binary_data_size": 9}},
                "0 bytes are left",
            ),
        ],
    )
    def test_bad_tensors_are_named(self, client: httpx.Client, tensor: Any, message: str) -> None:
        response = client.post("/v2/models/embedder/infer", json={"inputs": [tensor]})
        assert response.status_code == 400
        assert message in response.json()["error"]


class TestListing:
    def test_models(self, client: httpx.Client) -> None:
        found = client.get("/v1/models").json()["data"]
        uses = {each["id"]: each["uses"] for each in found}
        assert uses["talker"] == ["chat", "generation"]
        assert uses["writer"] == ["chat", "generation"]
        assert uses["embedder"] == ["embedding"]
        assert client.get("/v1/models/embedder").json()["id"] == "embedder"
        assert client.get("/v1/models/nope").status_code == 404

    def test_request_ids_log_and_metrics(self, client: httpx.Client, gateway: RunningGateway) -> None:
        document = {"model": "writer", "prompt": "hello", "max_tokens": 3, "stream": True}
        sent = client.post("/v1/completions", json=document, headers={"x-request-id": "mine-1"})
        assert sent.headers["x-request-id"] == "mine-1"
        odd = client.get("/health", headers={"x-request-id": "a b"})
        assert len(odd.headers["x-request-id"]) == 32
        assert until(lambda: any(line["id"] == "mine-1" for line in gateway.log()))
        (line,) = [line for line in gateway.log() if line["id"] == "mine-1"]
        assert (line["model"], line["status"], line["output_tokens"], line["input_tokens"]) == ("writer", 200, 3, 5)
        assert 0 < line["first_part_ms"] <= line["ms"]
        page = gateway.metrics()
        assert 'tidal_gateway_requests_total{model="writer",route="completions",status="200"}' in page
        assert "nope" not in page  # a name that a client made up
        assert until(lambda: "tidal_gateway_server_up" in gateway.metrics())

    def test_the_description_names_every_path(self, client: httpx.Client) -> None:
        found = client.get("/openapi.json").json()
        assert "/v1/chat/completions" in found["paths"]
        fields = found["components"]["schemas"]["CompletionBody"]["properties"]
        assert {"prompt", "temperature", "latency_ms"} <= set(fields)
