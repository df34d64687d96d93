"""Entities, answers and masked words on a real server, over HTTP and gRPC, compared with transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from testing.metrics import published
from testing.servers import RunningServer, running_server
from testing.task_heads import answer_or_none
from testing.waiting import until
from tests.encoder_tasks.token_models import build_token_models
from tests.encoder_tasks.token_sources import LABELS, MAX_LENGTH, STRIDE, Sources, make_texts
from tidal.encoder_tasks.entities import AGGREGATIONS
from tidal_client import Client, InvalidArgument

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    return Sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def server(sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with the models of `build_token_models`."""
    repository = tmp_path_factory.mktemp("repository")
    build_token_models(repository, sources)
    with running_server(repository) as running:
        yield running


@pytest.fixture(params=["grpc", "http"])
def client(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[Client]:
    with Client(f"{request.param}://{getattr(server, request.param)}") as made:
        yield made


def column(*texts: str | bytes) -> npt.NDArray[Any]:
    return np.array([text.encode() if isinstance(text, str) else text for text in texts], object)[:, None]


def tokens_of(client: Client, model: str, texts: Sequence[str], **options: Any) -> list[list[dict[str, Any]]]:
    found = client.infer(model, {"text_input": column(*texts)}, outputs=["entities"], **options)
    return [json.loads(row) for row in found["entities"][:, 0]]


def questions_of(client: Client, model: str, pairs: Sequence[tuple[str, str]], **options: Any) -> dict[str, Any]:
    inputs = {"text_input": column(*(q for q, _ in pairs)), "text_pair": column(*(c for _, c in pairs))}
    return dict(client.infer(model, inputs, **options))


def test_metrics_count_answers_by_task(server: RunningServer) -> None:
    """Requests, rows, tokens and what was found, of requests that were answered.

    The first test of the server: a busy machine publishes what later tests count up to five seconds late.
    """
    text, masked = " ".join(make_texts(3, seed=31)), "a [MASK] to [MASK]"
    pairs = {"text_input": column("who ?", "who ?"), "text_pair": column("\u200b", "José")}
    asked: dict[str, tuple[str, dict[str, Any], list[str]]] = {
        "ner": ("token-classification", {"text_input": column(text, "good")}, ["entities", "logits"]),
        "qa": ("question-answering", pairs, ["answer"]),
        "fill": ("fill-mask", {"text_input": column(masked)}, ["predictions"]),
        "vectors": ("embedding", {"text_input": column("good", text)}, ["embedding"]),
    }
    families = {
        each: f"tidal_arlo_{each}" for each in ("answered_requests_total", "answered_rows_total", "found_total")
    }
    families["answered_tokens_total"] = "tidal_arlo_answered_tokens_total"

    def read(page: str, model: str, task: str) -> dict[str, float]:
        return {name: published(page, family, model=model, task=task) for name, family in families.items()}

    with Client(f"grpc://{server.grpc}") as client:
        for model, (task, inputs, outputs) in asked.items():
            got = client.infer(model, inputs, outputs=[*outputs, "input_tokens"])
            found = {
                "ner": lambda got=got: sum(len(json.loads(row)) for row in got["entities"][:, 0]),
                "qa": lambda: 1,
                "fill": lambda: 2,
                "vectors": lambda: 0,
            }[model]()
            expected = {
                "answered_requests_total": 1,
                "answered_rows_total": len(inputs["text_input"]),
                "answered_tokens_total": int(got["input_tokens"].sum()),
                "found_total": found,
            }

            def counted(model: str = model, task: str = task, expected: dict[str, int] = expected) -> bool:
                return read(server.metrics_text(), model, task) == expected

            assert until(counted), (model, expected)
        with pytest.raises(InvalidArgument):
            client.infer("fill", {"text_input": column("no mask")})


class TestEntities:
    @pytest.mark.parametrize(
        ("model", "aggregation"),
        [
            *(("ner", each) for each in AGGREGATIONS),
            ("ner_parts", "simple"),
            ("ner_parts", "average"),
            ("ner_torch", "simple"),
        ],
    )
    def test_equal_those_of_the_pipeline(self, client: Client, sources: Sources, model: str, aggregation: Any) -> None:
        texts = make_texts(24, seed=1)
        for text, got in zip(texts, tokens_of(client, model, texts, aggregation=aggregation), strict=True):
            expected = sources.pipeline_of(model)(text, aggregation_strategy=aggregation)
            label = "entity" if aggregation == "none" else "entity_group"
            assert [(each["label"], each["start"], each["end"]) for each in got] == [
                (each[label], each["start"], each["end"]) for each in expected
            ]
            np.testing.assert_allclose([each["score"] for each in got], [each["score"] for each in expected], atol=2e-3)
            assert [each["text"] for each in got] == [text[each["start"] : each["end"]] for each in expected]

    def test_arrays_are_padded(self, client: Client) -> None:
        texts = ["good", *make_texts(5, seed=2)]
        got = client.infer("ner", {"text_input": column(*texts)})
        lists = [json.loads(row) for row in got["entities"][:, 0]]
        width = max(1, *map(len, lists))
        for row, entities in enumerate(lists):
            rest = width - len(entities)
            assert got["entity_labels"][row].tolist() == [e["label"].encode() for e in entities] + [b""] * rest
            assert got["entity_starts"][row].tolist() == [e["start"] for e in entities] + [-1] * rest
            assert got["entity_ends"][row].tolist() == [e["end"] for e in entities] + [-1] * rest
            np.testing.assert_allclose(got["entity_scores"][row], [e["score"] for e in entities] + [0] * rest)
        assert got["logits"].shape[::2] == (6, len(LABELS))

    @pytest.mark.parametrize("model_name", ["ner_windows", "ner_parts", "ner_torch"])
    def test_a_long_text_is_read_in_windows(self, client: Client, sources: Sources, model_name: str) -> None:
        import torch

        long, short = " ".join(make_texts(14, seed=3)), "a flight to José"
        pipeline = sources.pipeline_of(model_name)
        model, tokenizer = pipeline.model, pipeline.tokenizer
        encoded = tokenizer(
            long, truncation=True, max_length=MAX_LENGTH, stride=STRIDE, return_overflowing_tokens=True,
            return_offsets_mapping=True, padding=True, return_tensors="pt",
        )  # fmt: skip
        with torch.inference_mode():
            ids, mask = encoded["input_ids"], encoded["attention_mask"]
            logits = model(input_ids=ids, attention_mask=mask, token_type_ids=encoded["token_type_ids"]).logits.numpy()
        assert len(logits) > 3
        # Every token from the window in which it is farther from the cut.
        best: dict[int, tuple[int, Any]] = {}
        step = MAX_LENGTH - 2 - STRIDE
        for number, (row, count) in enumerate(zip(logits, mask.sum(1).tolist(), strict=True)):
            last = number == len(logits) - 1
            for place in range(1, count - 1):
                left = place - 1 if number else 999
                right = 999 if last else count - 2 - place
                token = number * step + place - 1
                if token not in best or min(left, right) > best[token][0]:
                    best[token] = min(left, right), row[place]
        expected = np.stack([best[token][1] for token in range(len(best))])
        got = client.infer(model_name, {"text_input": column(short, long)})
        np.testing.assert_allclose(got["logits"][1, 1 : len(expected) + 1], expected, atol=1e-3)
        assert got["max_length"][1].tolist() == [MAX_LENGTH]
        (alone,) = tokens_of(client, model_name, [short])
        beside = json.loads(got["entities"][0, 0])
        assert [e.pop("score") for e in beside] == pytest.approx([e.pop("score") for e in alone], abs=1e-4)
        assert beside == alone
        assert all(long[each["start"] : each["end"]] == each["text"] for each in json.loads(got["entities"][1, 0]))
        assert json.loads(got["entities"][1, 0])[-1]["end"] > len(long) - 60

    def test_leading_blanks_count_as_characters(self, client: Client, sources: Sources) -> None:
        text = " ".join(make_texts(2, seed=8))
        (plain,) = tokens_of(client, "ner", [text], aggregation="none")
        (moved,) = tokens_of(client, "ner", [" " * 3_000 + text], aggregation="none")
        assert plain
        assert [each["start"] - 3_000 for each in moved] == [each["start"] for each in plain]
        assert [each["text"] for each in moved] == [each["text"] for each in plain]

    def test_token_ids_have_logits_and_no_entities(self, client: Client) -> None:
        ids = {"input_ids": np.array([[2, 20, 30, 3]], np.int64)}
        assert client.infer("ner", ids, outputs=["logits"])["logits"].shape == (1, 4, len(LABELS))
        with pytest.raises(InvalidArgument, match="text_input was not sent, and entities are positions in it"):
            client.infer("ner", ids)


class TestQuestions:
    @pytest.mark.parametrize("model", ["qa", "qa_parts"])
    def test_best_answers(self, client: Client, sources: Sources, model: str) -> None:
        pairs = list(zip(make_texts(12, seed=4, longest=4), make_texts(12, seed=5, longest=10), strict=True))
        pairs = [pair for pair in pairs if sum(map(len, pair)) < 100]
        got = questions_of(client, model, pairs, top_k=3)
        for row, (question, context) in enumerate(pairs):
            expected = sources.answers(question, context, top_k=3, stride=STRIDE)
            found = json.loads(got["answers"][row, 0])
            assert [(e["answer"], e["start"], e["end"]) for e in found] == [(e.text, e.start, e.end) for e in expected]
            np.testing.assert_allclose([e["score"] for e in found], [e.score for e in expected], atol=2e-3)
            best = expected[0]
            assert got["answer"][row, 0].decode() == context[best.start : best.end] == best.text
            assert (got["start"][row, 0], got["end"][row, 0]) == (best.start, best.end)

    @pytest.mark.parametrize("model", ["qa", "qa_parts"])
    def test_a_long_context_is_read_in_windows_or_truncated(self, client: Client, sources: Sources, model: str) -> None:
        question, context = "who books a flight ?", " ".join(make_texts(16, seed=6))
        got = questions_of(client, model, [(question, context)], top_k=5)
        expected = sources.answers(question, context, top_k=5, stride=STRIDE)
        assert [e["answer"] for e in json.loads(got["answers"][0, 0])] == [e.text for e in expected]
        cut = questions_of(client, "qa_cut", [(question, context)])
        assert cut["answer"][0, 0].decode() == sources.answers(question, context)[0].text
        assert got["max_length"].tolist() == cut["max_length"].tolist() == [[MAX_LENGTH]]

    def test_leading_blanks_count_as_characters(self, client: Client, sources: Sources) -> None:
        context = " " * 70_000 + "José has a good flight"
        got = questions_of(client, "qa_cut", [("who ?", context)])
        assert context[got["start"][0, 0] : got["end"][0, 0]] == got["answer"][0, 0].decode() != ""
        assert got["start"][0, 0] >= 70_000

    def test_an_empty_answer_competes_and_answers_are_short(self, client: Client, sources: Sources) -> None:
        """As the fields `impossible_answers` and `max_answer_tokens` of the spec say."""
        import torch

        tokenizer, model = sources.reader
        pairs = list(zip(make_texts(24, seed=9, longest=4), make_texts(24, seed=10, longest=6), strict=True))
        got = questions_of(client, "qa_unsure", pairs)
        wanted = []
        for row, (question, context) in enumerate(pairs):
            encoded = tokenizer(question, context, return_tensors="pt")
            with torch.inference_mode():
                found = model(**encoded)
            assert encoded["input_ids"].shape[1] <= MAX_LENGTH  # one window
            values = torch.stack([found.start_logits[0], found.end_logits[0]], dim=1).numpy()
            wanted.append(answer_or_none(values, encoded, context, 3))
            assert (got["start"][row, 0], got["end"][row, 0]) == (wanted[-1] or (0, 0)), (question, context)
            assert got["answer"][row, 0].decode() == ("" if wanted[-1] is None else context[slice(*wanted[-1])])
        assert {each is None for each in wanted} == {True, False}

    def test_an_empty_answer_competes_over_windows(self, client: Client, sources: Sources) -> None:
        question, context = "who books a flight ?", " ".join(make_texts(16, seed=6))
        got = questions_of(client, "qa_unsure", [(question, context)], top_k=5)
        limits = {"max_tokens": 3, "impossible": True}
        expected = sources.answers(question, context, top_k=5, stride=STRIDE, **limits)
        assert [e["answer"] for e in json.loads(got["answers"][0, 0])] == [e.text for e in expected]

    def test_a_context_without_tokens_has_no_answer(self, client: Client) -> None:
        got = questions_of(client, "qa", [("who ?", "\u200b"), ("who ?", "José")])
        assert got["answer"][:, 0].tolist() == [b"", "José".encode()]
        assert (got["score"][0, 0], got["start"][0, 0], got["end"][0, 0]) == (0, 0, 0)


class TestMaskedWords:
    @pytest.mark.parametrize("model", ["fill", "fill_parts"])
    def test_predictions_equal_those_of_the_pipeline(self, client: Client, sources: Sources, model: str) -> None:
        texts = [
            "[MASK]",
            "book a [MASK] to 東京 🎉",
            "[MASK] was [MASK] , [MASK] e\u0301te\u0301",
            *["the [MASK] song"] * 6,
        ]
        got = client.infer(model, {"text_input": column(*texts)}, top_k=4)
        for text, row in zip(texts, got["predictions"][:, 0], strict=True):
            expected = sources.fill(text, top_k=4)
            lists = [expected] if isinstance(expected[0], dict) else expected
            found = json.loads(row)
            assert [[each["token_id"] for each in each_list] for each_list in found] == [
                [each["token"] for each in each_list] for each_list in lists
            ]
            assert [e["token"] for es in found for e in es] == [e["token_str"] for es in lists for e in es]
            np.testing.assert_allclose(
                [e["score"] for es in found for e in es], [e["score"] for es in lists for e in es], rtol=5e-3
            )

    @pytest.mark.parametrize("model", ["fill", "fill_parts"])
    def test_attention_is_that_of_the_unmodified_model(self, client: Client, sources: Sources, model: str) -> None:
        """Summed over layers, heads and the tokens that attend, without padding."""
        import torch
        from transformers import AutoModelForMaskedLM

        source = AutoModelForMaskedLM.from_pretrained(sources.masks, attn_implementation="eager").eval()
        texts = ["[MASK]", "book a [MASK] to the city"]
        got = client.infer(model, {"text_input": column(*texts)}, outputs=["attention_received"])["attention_received"]
        for text, row in zip(texts, got, strict=True):
            with torch.inference_mode():
                found = source(**sources.fill.tokenizer(text, return_tensors="pt"), output_attentions=True).attentions
            expected = torch.stack(found).sum(dim=(0, 1, 2, 3)).numpy()
            np.testing.assert_allclose(row[: len(expected)], expected, atol=1e-3)
            assert not row[len(expected) :].any()

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("no mask", r"text_input row 1 has 0 masked words; this model accepts 1 to 8, each written as \[MASK\]"),
            ("[MASK] " * 9, "text_input row 1 has 9 masked words; this model accepts 1 to 8"),
        ],
    )
    def test_other_numbers_of_masks_are_refused(self, client: Client, text: str, message: str) -> None:
        with pytest.raises(InvalidArgument, match=message):
            client.infer("fill", {"text_input": column("a [MASK]", text)})


@pytest.mark.parametrize("name", ["vectors", "unit_vectors"])
def test_vectors_of_windows_are_averaged(client: Client, sources: Sources, name: str) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer = AutoModel.from_pretrained(sources.vectors).eval(), AutoTokenizer.from_pretrained(sources.vectors)
    long = " ".join(make_texts(14, seed=7))
    encoded = tokenizer(long, truncation=True, max_length=MAX_LENGTH, stride=0, return_overflowing_tokens=True)

    def finished(vector: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return vector / np.linalg.norm(vector) if name == "unit_vectors" else vector

    vectors, weights = [], []
    for number, ids in enumerate(encoded["input_ids"]):
        with torch.inference_mode():
            hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        vectors.append(finished(hidden.mean(0).numpy()))
        weights.append(len(ids) - (2 if number else 0))
    mean = np.average(vectors, axis=0, weights=weights)
    assert len(vectors) > 1
    inputs = {"text_input": column("good", long)}
    got = client.infer(name, inputs, outputs=["embedding", "embedding_fp16"])
    np.testing.assert_allclose(got["embedding"][1], finished(mean), atol=1e-4)
    np.testing.assert_allclose(got["embedding_fp16"][1], finished(mean), atol=2e-3)
    for dimensions in (5, len(mean)):
        short = client.infer(name, inputs, outputs=["embedding"], dimensions=dimensions)["embedding"][1]
        np.testing.assert_allclose(short, finished(mean[:dimensions]), atol=1e-4)


BAD: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("ner", {"text_input": column("good", b"ok \xff\xfe")}, {}, "text_input row 1 is not valid UTF-8 at byte 3"),
    ("ner", {"text_input": column("good", "")}, {}, "text_input row 1 is empty"),
    ("ner", {"text_input": np.empty((0, 1), object)}, {}, "expected 1 string elements for inference input"),
    (
        "qa",
        {"text_input": np.empty((0, 1), object), "text_pair": np.empty((0, 1), object)},
        {},
        "expected 1 string elements",
    ),
    ("fill", {"text_input": column(b"[MASK] \xff")}, {}, "text_input row 0 is not valid UTF-8 at byte 7"),
    ("fill", {"text_input": np.empty((0, 1), object)}, {}, "expected 1 string elements for inference input"),
    ("ner", {"text_input": column("good " * 80)}, {}, "82 tokens; this model reads at most 64"),
    ("ner", {"text_input": column("good")}, {"aggregation": "best"}, "request option 'aggregation'"),
    ("ner_windows", {"text_input": column("good " * 1100)}, {}, "1102 tokens; this model reads at most 1024"),
    ("qa", {"text_input": column("who ?")}, {}, "text_pair was not sent; expected text_input, the question"),
    ("qa", {"text_input": column("who ?"), "text_pair": column(b"\xff")}, {}, "text_pair row 0 is not valid UTF-8"),
    ("qa", {"text_input": column("who ?"), "text_pair": column("")}, {}, "text_pair row 0 is empty"),
    (
        "qa",
        {"text_input": column("who " * 70), "text_pair": column("a b")},
        {},
        "73 tokens beside the text of text_pair",
    ),
    ("qa", {"text_input": column("a " * 60), "text_pair": column("a " * 90)}, {}, "needs 90 windows of 64 tokens"),
    (
        "qa",
        {"text_input": column("a"), "text_pair": column("b")},
        {"top_k": 0},
        "'top_k' is 0; this model accepts 1 to",
    ),
    ("qa", {"text_input": column("a"), "text_pair": column("b")}, {"top_k": 101}, "'top_k' is 101"),
    ("fill", {"text_input": column("a [MASK]")}, {"top_k": 0}, "'top_k' is 0"),
]


@pytest.mark.parametrize(("model", "inputs", "options", "message"), BAD)
def test_bad_input_is_refused_alone(
    client: Client, model: str, inputs: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        client.infer(model, inputs, **options)
    assert message in str(caught.value)
    assert tokens_of(client, "ner", ["good"])


def test_the_clients_methods_return_typed_results(server: RunningServer, sources: Sources) -> None:
    text, question = make_texts(1, seed=21)[0], "book a flight"
    with Client(f"http://{server.http}") as client:
        found = client.entities("ner", text, aggregation="none")
        assert [text[each.start : each.end] for each in found] == [each.text for each in found]
        expected = [each for each in sources.pipeline(text) if each["entity"] != "O"]
        assert [(each.label, each.start, each.end) for each in found] == [
            (each["entity"], each["start"], each["end"]) for each in expected
        ]
        assert client.tokens("ner", text) == found
        assert client.entities_many("ner", [text, question], aggregation="none")[0] == found
        answer = client.answer("qa_cut", question, text, top_k=2)
        assert len(answer.candidates) == 2
        assert text[answer.start : answer.end] == answer.text
        masks = client.predict_masks("fill", "book a [MASK] to [MASK]", top_k=3)
        assert [len(each) for each in masks] == [3, 3]
