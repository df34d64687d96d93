"""Models for the tasks of encoders on a real server, over HTTP and gRPC, compared with the unmodified source models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from testing.classifiers import build_classifier
from testing.sentence_models import add_sentence_files, make_embedding_model, make_tiny_encoder
from testing.servers import RunningServer, running_server
from tests.arlo.support import make_texts, text_rows
from tidal_client import Client, InvalidArgument

pytestmark = pytest.mark.server

MAX_LENGTH = 40
PROMPTS = {"query": "find show: ", "document": "tell "}
TEXTS = make_texts(5, seed=4, longest=30)
LABELS = {"id2label": {"0": "food", "1": "weather", "2": "übung"}, "problem_type": "multi_label_classification"}
ONE = {"id2label": {"0": "score"}, "label2id": {"score": 0}}
CROSS = {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.activation.Sigmoid"}
#: One runtime: each is a process, which for torch takes seconds to start.
ONE_RUNTIME = {"lengths": [MAX_LENGTH]}
#: Models: fields of their specs besides the source.
SPECS: dict[str, dict[str, Any]] = {
    "embed": {"max_batch": 4},
    "embed_torch": {
        "engine": "torch",
        "placement": "partitioned",
        "pooling": "lasttoken",
        "slo_ms": 5000,
        "max_batch": 2,
        **ONE_RUNTIME,
    },
    "embed_prompts": {"pooling": "max", "prompts": {"task": "show "}, "default_prompt": "task", "similarity": "cosine"}
    | ONE_RUNTIME,
    "labels": {},
    "labels_parts": {"placement": "partitioned", "slo_ms": 5000, "max_batch": 2, **ONE_RUNTIME},
    "number": {},
    "pairs": {"placement": "partitioned", "slo_ms": 5000},
    "pairs_whole": {},
    "pairs_torch": {"engine": "torch", **ONE_RUNTIME},
    "words": {"engine": "torch"},
    "words_parts": {"placement": "partitioned", "slo_ms": 5000, "max_batch": 2, **ONE_RUNTIME},
}


@dataclass
class SourceModel:
    """An unmodified source model, which runs one text alone."""

    folder: Path
    auto_class: str

    @cached_property
    def model(self) -> Any:
        return getattr(transformers, self.auto_class).from_pretrained(self.folder).eval()

    @cached_property
    def tokenizer(self) -> Any:
        return transformers.AutoTokenizer.from_pretrained(self.folder)

    def run(self, *texts: str) -> np.ndarray[Any, Any]:
        """Logits or vectors of tokens."""
        with torch.inference_mode():
            outputs = self.model(**self.tokenizer(*texts, return_tensors="pt"))
        values = outputs.last_hidden_state if "last_hidden_state" in outputs else outputs.logits
        return np.asarray(values[0].numpy())

    def embed(self, text: str, pooling: str = "mean") -> np.ndarray[Any, Any]:
        """Vectors of tokens as one, with a length of 1."""
        hidden = self.run(text)
        pooled = {"mean": hidden.mean(0), "max": hidden.max(0), "lasttoken": hidden[-1]}[pooling]
        return np.asarray(pooled / np.linalg.norm(pooled))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SourceModel]:
    folder = tmp_path_factory.mktemp("sources")
    options = {"prompts": PROMPTS, "similarity_fn_name": "dot"}
    embed = make_embedding_model(folder / "embed", options=options, max_seq_length=MAX_LENGTH)
    pairs = make_tiny_encoder(folder / "pairs", "BertForSequenceClassification", **ONE)
    add_sentence_files(pairs, [("Transformer", {})], options=CROSS, max_seq_length=MAX_LENGTH)
    words = make_tiny_encoder(folder / "words", "BertForMaskedLM")
    add_sentence_files(words, [("MLMTransformer", {}), ("SpladePooling", {})], max_seq_length=MAX_LENGTH)
    sequence, regression = "BertForSequenceClassification", {**ONE, "problem_type": "regression"}
    classifier = "AutoModelForSequenceClassification"
    made = {
        "embed": SourceModel(embed, "AutoModel"),
        "pairs": SourceModel(pairs, classifier),
        "words": SourceModel(words, "AutoModelForMaskedLM"),
        "labels": SourceModel(make_tiny_encoder(folder / "labels", sequence, **LABELS), classifier),
        "number": SourceModel(make_tiny_encoder(folder / "number", sequence, **regression), classifier),
    }
    return {name: made[name.partition("_")[0]] for name in SPECS}


@pytest.fixture(scope="module")
def server(sources: dict[str, SourceModel], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("repository")
    for name, fields in SPECS.items():
        options = {"lengths": [16, MAX_LENGTH], "threads": 1, **fields}
        build_classifier(repository, sources[name].folder, name=name, **options)
    with running_server(repository) as running:
        yield running


@pytest.fixture(params=["grpc", "http"])
def client(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[Client]:
    with Client(f"{request.param}://{getattr(server, request.param)}") as opened:
        yield opened


Infer = Callable[..., dict[str, np.ndarray[Any, Any]]]


def rows_of(*texts: str) -> dict[str, Any]:
    return text_rows(*(text.encode() for text in texts))


def pair_rows(query: str, *documents: str) -> dict[str, Any]:
    pair = np.array([[document.encode()] for document in documents], object)
    return {**rows_of(*[query] * len(documents)), "text_pair": pair}


def settings_of(server: RunningServer, model: str) -> Any:
    """Settings of an embedding model, as its config tells clients."""
    import tritonclient.http as http

    found = http.InferenceServerClient(server.http)
    parameters = found.get_model_config(model)["parameters"]
    found.close()
    assert parameters["task"]["string_value"] == "embedding"
    return json.loads(parameters["task_settings"]["string_value"])


class TestEmbedding:
    @pytest.mark.parametrize("model", ["embed", "embed_torch", "embed_prompts"])
    def test_vectors_equal_the_source_models_also_in_padded_batches(
        self, client: Client, sources: dict[str, SourceModel], model: str
    ) -> None:
        pooling = SPECS[model].get("pooling", "mean")
        prompt = "show " if model == "embed_prompts" else ""
        wanted = np.stack([sources[model].embed(prompt + text, pooling) for text in TEXTS])
        got = client.infer(model, rows_of(*TEXTS), outputs=["embedding"])
        assert set(got) == {"embedding"}
        assert (got["embedding"] * wanted).sum(1).min() > 0.99999
        np.testing.assert_allclose(got["embedding"], wanted, atol=1e-4)

    def test_other_types_are_of_the_same_vectors(self, client: Client) -> None:
        got = client.infer("embed", rows_of(*TEXTS))
        vectors = got["embedding"]
        np.testing.assert_array_equal(got["embedding_fp16"], vectors.astype(np.float16))
        np.testing.assert_array_equal(got["embedding_int8"], np.rint(vectors * 127))
        np.testing.assert_array_equal(np.unpackbits(got["embedding_binary"], axis=1), vectors > 0)
        assert [got[name].dtype for name in ("embedding_int8", "embedding_binary")] == [np.int8, np.uint8]

    def test_prompts_are_put_in_front(self, client: Client, sources: dict[str, SourceModel]) -> None:
        text = "the weather in the city"
        for name, prompt in PROMPTS.items():
            got = client.infer("embed", rows_of(text), outputs=["embedding"], prompt=name)["embedding"][0]
            np.testing.assert_allclose(got, sources["embed"].embed(prompt + text), atol=1e-4)

    def test_prompts_of_the_spec_replace_those_of_the_model(
        self, client: Client, server: RunningServer, sources: dict[str, SourceModel]
    ) -> None:
        text, source = "the weather in the city", sources["embed"]
        for options in ({}, {"prompt": "task"}):
            got = client.infer("embed_prompts", rows_of(text), outputs=["embedding"], **options)["embedding"][0]
            np.testing.assert_allclose(got, source.embed("show " + text, "max"), atol=1e-4)
        with pytest.raises(InvalidArgument, match="unknown prompt 'query' in request option 'prompt': accepted: task"):
            client.infer("embed_prompts", rows_of(text), prompt="query")
        found = settings_of(server, "embed_prompts")
        assert (found["prompts"], found["default_prompt"], found["similarity"]) == ({"task": "show "}, "task", "cosine")

    def test_dimensions_are_the_first_at_length_1(self, client: Client) -> None:
        whole = client.infer("embed", rows_of(*TEXTS), outputs=["embedding"])["embedding"]
        outputs = ["embedding", "embedding_int8", "embedding_binary"]
        got = client.infer("embed", rows_of(*TEXTS), outputs=outputs, dimensions=24)
        wanted = whole[:, :24] / np.linalg.norm(whole[:, :24], axis=1, keepdims=True)
        np.testing.assert_allclose(got["embedding"], wanted, atol=1e-5)
        np.testing.assert_allclose(got["embedding_int8"], wanted * 127, atol=0.51)
        np.testing.assert_array_equal(np.unpackbits(got["embedding_binary"], axis=1), wanted > 0)

    @pytest.mark.parametrize(
        ("inputs", "options", "message"),
        [
            (rows_of("good"), {"prompt": "queri"}, "unknown prompt 'queri'.*did you mean 'query'"),
            (rows_of("good"), {"dimensions": 65}, "'dimensions' is 65; this model gives up to 64"),
            (rows_of("good"), {"dimensions": 0}, "'dimensions'"),
            (rows_of("good", " "), {"prompt": "query"}, "text_input row 1 is empty"),
            (text_rows(b"ok \xff"), {"prompt": "query"}, "not valid UTF-8 at byte 3"),
            (rows_of("good " * MAX_LENGTH), {}, f"this model reads at most {MAX_LENGTH}"),
            ({"input_ids": np.array([[2, 9, 3]], np.int64)}, {"prompt": "query"}, "token ids take no prompt"),
            (pair_rows("a", "b"), {}, "text_pair"),
        ],
    )
    def test_bad_requests_are_refused_alone(
        self, client: Client, inputs: dict[str, Any], options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(InvalidArgument, match=message):
            client.infer("embed", inputs, **options)
        assert client.infer("embed", rows_of("good"), outputs=["embedding"])["embedding"].shape == (1, 64)

    def test_clients_can_read_the_settings(self, server: RunningServer) -> None:
        assert settings_of(server, "embed") == {
            "dimension": 64,
            "pooling": ["mean"],
            "normalized": True,
            "similarity": "dot",
            "prompts": PROMPTS,
            "default_prompt": None,
        }


class TestScores:
    @pytest.mark.parametrize("model", ["pairs", "pairs_whole", "pairs_torch"])
    def test_rerank(self, client: Client, sources: dict[str, SourceModel], model: str) -> None:
        query, documents = "book a flight", TEXTS[:4]
        got = client.infer(model, pair_rows(query, *documents))
        logits = np.stack([sources["pairs"].run(query, document) for document in documents])
        np.testing.assert_allclose(got["logits"], logits, atol=1e-3)
        np.testing.assert_allclose(got["score"], 1 / (1 + np.exp(-logits)), atol=1e-3)
        with pytest.raises(InvalidArgument, match="text_pair is missing; this model scores pairs"):
            client.infer(model, rows_of(query))

    def test_regression(self, client: Client, sources: dict[str, SourceModel]) -> None:
        got = client.infer("number", rows_of(*TEXTS))
        wanted = np.stack([sources["number"].run(text) for text in TEXTS])
        np.testing.assert_allclose(got["score"], wanted, atol=1e-3)
        np.testing.assert_allclose(got["logits"], wanted, atol=1e-3)

    @pytest.mark.parametrize("model", ["labels", "labels_parts"])
    def test_several_labels(self, client: Client, sources: dict[str, SourceModel], model: str) -> None:
        names = list(LABELS["id2label"].values())  # type: ignore[attr-defined]
        for threshold in (None, 0.0, 0.7):
            options = {} if threshold is None else {"threshold": threshold}
            got = client.infer(model, rows_of(*TEXTS), **options)
            for row, text in enumerate(TEXTS):
                logits = sources["labels"].run(text)
                chances = 1 / (1 + np.exp(-logits))
                np.testing.assert_allclose(got["logits"][row], logits, atol=1e-3)
                np.testing.assert_allclose(got["probabilities"][row], chances, atol=1e-3)
                above = [n for n in np.argsort(-chances) if chances[n] >= (0.5 if threshold is None else threshold)]
                assert json.loads(got["labels"][row, 0]) == [names[n] for n in above]
                assert got["label"][row, 0].decode() == names[logits.argmax()]


@pytest.mark.parametrize("model", ["words", "words_parts"])
def test_sparse_embedding(client: Client, sources: dict[str, SourceModel], model: str) -> None:
    got = client.infer(model, rows_of(*TEXTS))
    for row, text in enumerate(TEXTS):
        weights = np.log1p(np.maximum(sources["words"].run(text), 0)).max(0)
        wanted = np.flatnonzero(weights > 0)
        count = len(wanted)
        assert got["indices"][row, :count].tolist() == wanted.tolist()
        assert set(got["indices"][row, count:].tolist()) <= {-1}
        np.testing.assert_allclose(got["weights"][row, :count], weights[wanted], atol=1e-3)
        assert not got["weights"][row, count:].any()


def test_the_clients_methods_return_typed_results(client: Client, sources: dict[str, SourceModel]) -> None:
    found = client.embed("embed", TEXTS)
    expected = np.stack([sources["embed"].embed(text) for text in TEXTS])
    np.testing.assert_allclose(found.array, expected, atol=1e-5)
    signs = client.embed("embed", TEXTS, dtype="binary")
    assert signs.dimensions == found.dimensions
    np.testing.assert_array_equal(signs.array, np.packbits(found.array > 0, axis=1))
    half = client.embed("embed", TEXTS, prompt="query", dimensions=8)
    assert (half.array.shape, half.dtype) == ((len(TEXTS), 8), "float32")
    ranked = client.rerank("pairs", TEXTS[0], TEXTS[1:], top_n=2)
    scores = [1 / (1 + np.exp(-sources["pairs"].run(TEXTS[0], text).item())) for text in TEXTS[1:]]
    assert [each.index for each in ranked] == np.argsort(scores)[::-1][:2].tolist()
    np.testing.assert_allclose([each.score for each in ranked], sorted(scores)[::-1][:2], atol=1e-5)
    logits = [sources["number"].run(text).item() for text in TEXTS]
    np.testing.assert_allclose(client.score("number", TEXTS), logits, atol=1e-5)
    labels = client.classify("labels", TEXTS[0], threshold=0.0).labels
    assert labels is not None
    assert set(labels) == set(LABELS["id2label"].values())
    assert len(client.sparse_embed("words", TEXTS)) == len(TEXTS)


def test_ten_thousand_documents_are_ranked_and_none_are_refused(
    client: Client, sources: dict[str, SourceModel]
) -> None:
    documents = [f"{TEXTS[number % len(TEXTS)][:12]} {number % 97}" for number in range(10_000)]
    best = client.rerank("pairs_whole", "book a flight", documents, top_n=3)
    assert len(best) == 3
    for each in best:
        logit = sources["pairs"].run("book a flight", each.document).item()
        assert each.document == documents[each.index]
        assert each.score == pytest.approx(1 / (1 + np.exp(-logit)), abs=1e-3)
    with pytest.raises(InvalidArgument, match="documents: expected at least one document, got an empty list"):
        client.rerank("pairs", "book a flight", [])
    none = {"text_input": np.empty((0, 1), object), "text_pair": np.empty((0, 1), object)}
    with pytest.raises(InvalidArgument, match="expected 1 string elements for inference input"):
        client.infer("pairs", none)
    bad = {"text_input": np.array([[b"a"]], object), "text_pair": np.array([[b"\xff"]], object)}
    with pytest.raises(InvalidArgument, match="text_pair row 0 is not valid UTF-8"):
        client.infer("pairs", bad)


def test_long_lists_are_split_in_order_and_name_their_bad_text(client: Client) -> None:
    texts = make_texts(150, seed=9, longest=30)
    one_by_one = np.concatenate([client.embed("embed", texts[start : start + 50]).array for start in (0, 50, 100)])
    np.testing.assert_allclose(client.embed("embed", texts).array, one_by_one, atol=1e-5)
    with pytest.raises(InvalidArgument, match=r"^documents\[137\] is empty; accepted"):
        client.rerank("pairs", "a query", [*texts[:137], " ", *texts[137:]])
