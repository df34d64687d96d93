"""Tasks of every kind on one encoder in a real server: in one batch, each answer is that of the task's own model."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from testing.metrics import published
from testing.pets import MADE, Base
from testing.task_heads import MAX_MASKS, PROMPTS, answer_or_none, entities, expected, random_head
from testing.truth import Truth, random_terms
from testing.waiting import until
from tests.pets.served.conftest import Served
from tests.pets.served.texts import make_texts
from tidal.pets.tasks.folder import add_task
from tidal.pets.terms import FloatArray, TaskTerms
from tidal.tasks.folder import remove_task
from tidal_client import AsyncClient, Client, InvalidArgument, RequestError
from tidal_client.main import build_app

pytestmark = pytest.mark.server

# Task, kind of fine-tuning, type of terms, seed, and pooling of an embedding.
TASKS: dict[str, tuple[str, str, str, int, tuple[str, ...]]] = {
    "topics": ("multi-label", "lora", "low_rank", 1, ()),
    "mood": ("classification", "adapter", "bottleneck", 2, ()),
    "names": ("token-classification", "bitfit", "bias", 3, ()),
    "stars": ("regression", "diff_pruning", "sparse", 4, ()),
    "relevance": ("rerank", "lora", "low_rank", 5, ()),
    "vectors": ("embedding", "lora", "low_rank", 6, ("mean",)),
    "first": ("embedding", "adapter", "after_norm", 7, ("cls",)),
    "answers": ("question-answering", "lora", "low_rank", 8, ()),
    "words": ("fill-mask", "lora", "low_rank", 10, ()),  # with the base's word embeddings
    "terms": ("sparse-embedding", "bitfit", "bias", 9, ()),
}
PAIRED = ("rerank", "question-answering")
Query = tuple[str, str, str | None]


class Tasks:
    """The tasks' own models."""

    def __init__(self, base: Base) -> None:
        self.base = base
        self.terms: dict[str, TaskTerms] = {}
        self._truths: dict[str, Truth] = {}
        for name, (task, _, terms, seed, pooling) in TASKS.items():
            words = len(base.tokenizer)
            head = random_head(task, base.layers.width, seed, pooling or ("mean",), words=words)
            self.terms[name] = replace(random_terms(terms, base.layers, seed), head=head)

    def add(self, folder: Any) -> None:
        for name, (_, kind, *_rest) in TASKS.items():
            terms = self.terms[name]
            if kind == "adapter":  # bottlenecks only where adapters may be
                ends = ("output.dense",)
                linear = {path: own for path, own in terms.linear.items() if path.endswith(ends)}
                self.terms[name] = terms = replace(terms, linear=linear)
            add_task(folder, name, kind, terms, self.base.layers, MADE)

    def truth(self, name: str) -> Truth:
        """The task's own model."""
        if name not in self._truths:
            self._truths[name] = Truth(self.base.model, self.terms[name])
        return self._truths[name]

    def values(self, name: str, text: str, pair: str | None) -> FloatArray:
        """What the answer is made of, from an unmodified transformers model with the task's weights."""
        encoded = self.base.tokenizer(text, pair)
        return expected(self.truth(name), self.terms[name].head, encoded["input_ids"], encoded["token_type_ids"])


@pytest.fixture(scope="module")
def tasks(served: Served, base: Base) -> Iterator[Tasks]:
    found = Tasks(base)
    folder = served.folder("full")
    found.add(folder)
    yield found
    for name in TASKS:
        remove_task(folder, name)


def inputs_of(*queries: tuple[str, str | None]) -> dict[str, Any]:
    """Inputs of a request with these texts, and with pairs if they have them."""
    inputs = {"text_input": np.array([[text.encode()] for text, _ in queries], object)}
    if queries[0][1] is not None:
        inputs["text_pair"] = np.array([[(pair or "").encode()] for _, pair in queries], object)
    return inputs


def check(tasks: Tasks, query: Query, answer: Any) -> None:
    """Compare an answer with the task's own model; `answer` has one row."""
    name = query[0]
    terms, values = tasks.terms[name], tasks.values(*query)
    task, labels = terms.head.task, [label.encode() for label in terms.head.labels]

    def close(output: str, wanted: Any, within: float = 1e-4) -> None:
        np.testing.assert_allclose(answer[output][0], wanted, atol=within, err_msg=f"{name}: {output}")

    if task == "embedding":
        close("embedding", values, 1e-4 * max(1.0, float(np.abs(values).max())))
        close("embedding_fp16", values, 2e-3 * max(1.0, float(np.abs(values).max())))
        unit = values / np.linalg.norm(values)
        close("embedding_int8", unit * 127, 0.6)
        assert answer["embedding_int8"].dtype == np.int8
        signs = np.unpackbits(answer["embedding_binary"][0])[: len(values)]
        clear = np.abs(values) > 1e-3
        assert (signs[clear] == (values[clear] > 0)).all()
        return
    if task == "fill-mask":
        check_words(tasks, query[1], values, json.loads(answer["predictions"][0, 0]))
        return
    if task == "sparse-embedding":
        check_terms(values, answer["indices"][0], answer["weights"][0])
        return
    if task == "question-answering":
        context = str(query[2])
        place = answer_or_none(values, tasks.base.tokenizer(query[1], context), context, impossible=False)
        assert place is not None
        assert (answer["start"][0, 0], answer["end"][0, 0]) == place
        assert answer["answer"][0, 0].decode() == context[slice(*place)]
        return
    scale = max(1.0, float(np.abs(values).max()))
    close("logits", values, 1e-4 * scale)
    probabilities = 1 / (1 + np.exp(-values.astype(np.float64)))
    if task == "classification":
        weights = np.exp(values.astype(np.float64) - values.max())
        close("probabilities", weights / weights.sum())
        assert answer["label"][0, 0] == labels[int(values.argmax())]
    elif task == "multi-label":
        close("probabilities", probabilities)
        assert set(json.loads(answer["labels"][0, 0])) == {
            terms.head.labels[n] for n in np.flatnonzero(probabilities >= 0.5)
        }
    elif task == "regression":
        close("score", values[:1], 1e-4 * scale)
    elif task == "rerank":
        close("score", probabilities)
    else:
        found = json.loads(answer["entities"][0, 0])
        wanted = entities(tasks.truth(name), terms.head, tasks.base.tokenizer, query[1], "simple")
        assert [{**each, "score": 0} for each in wanted] == [
            {"label": each["label"], "score": 0, "start": each["start"], "end": each["end"]} for each in found
        ]
        np.testing.assert_allclose([each["score"] for each in found], [each["score"] for each in wanted], atol=1e-3)


def check_words(tasks: Tasks, text: str, values: FloatArray, found: Any) -> None:
    """Compare the five most likely words for each mask of a text with scores of all words, [masks * words]."""
    scores = values.reshape(MAX_MASKS, -1)[: text.count("[MASK]")].astype(np.float64)
    assert len(found) == len(scores)
    for own, logits in zip(found, scores, strict=True):
        powers = np.exp(logits - logits.max())
        best = np.argsort(-logits)[:5].tolist()
        assert [each["token_id"] for each in own] == best
        assert [each["token"] for each in own] == [tasks.base.tokenizer.decode([number]) for number in best]
        np.testing.assert_allclose([each["score"] for each in own], (powers / powers.sum())[best], rtol=5e-3, atol=1e-5)


def check_terms(values: FloatArray, ids: Any, weights: Any) -> None:
    """Compare a sparse embedding with weights of all words."""
    assert (np.diff(ids) > 0).all()
    assert (weights > 0).all()
    found = np.zeros_like(values)
    found[ids] = weights
    np.testing.assert_allclose(found, values, atol=1e-4 * max(1.0, float(values.max())))


def queries(count: int, seed: int) -> list[Query]:
    texts = make_texts(2 * count, seed, longest=12)
    names = list(TASKS)
    chosen: list[Query] = []
    for number in range(count):
        name = names[number % len(names)]
        pair = texts[count + number] if TASKS[name][0] in PAIRED else None
        text = texts[number]
        if TASKS[name][0] == "fill-mask":
            text = " ".join(["[MASK]", text, *["[MASK]"] * (number % MAX_MASKS)])
        chosen.append((name, text, pair))
    return chosen


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_every_kind_of_task_in_one_batch(served: Served, tasks: Tasks, protocol: str) -> None:
    asked = queries(56, seed=ord(protocol[0]))

    def batches() -> tuple[float, float]:
        """Number of batches with at most three tasks, and of all."""
        few = served.metric("batch_distinct_tasks_bucket", "full", le="3.0")
        return few, served.metric("batch_distinct_tasks_count", "full")

    before = batches()

    async def ask() -> list[Any]:
        async with AsyncClient(served.url(protocol)) as client:
            return await asyncio.gather(
                *(client.infer("full", inputs_of((text, pair)), task=name) for name, text, pair in asked)
            )

    for query, answer in zip(asked, asyncio.run(ask()), strict=True):
        check(tasks, query, answer)

    def mixed() -> bool:
        """Whether a batch had more than three tasks; metrics are published a little later."""
        few, all_ = (now - then for now, then in zip(batches(), before, strict=True))
        return all_ > few

    assert until(mixed)


def test_a_task_answers_alone_as_in_a_batch_with_others(served: Served, tasks: Tasks) -> None:
    asked = queries(2 * len(TASKS), seed=5)
    with Client(served.url("grpc")) as client:
        alone = [client.infer("full", inputs_of((text, pair)), task=name) for name, text, pair in asked]

    async def ask() -> list[Any]:
        async with AsyncClient(served.url("grpc")) as client:
            return await asyncio.gather(
                *(client.infer("full", inputs_of((text, pair)), task=name) for name, text, pair in asked)
            )

    for query, one, other in zip(asked, alone, asyncio.run(ask()), strict=True):
        check(tasks, query, one)
        check(tasks, query, other)
        output = next((output for output in ("embedding", "logits", "score") if output in one), None)
        if output is None:
            continue
        wanted = one[output]
        np.testing.assert_allclose(other[output], wanted, atol=2e-5 * max(1.0, float(np.abs(wanted).max())))


def test_rows_of_one_request(served: Served, tasks: Tasks) -> None:
    texts = make_texts(5, seed=8)
    with Client(served.url("http")) as client:
        for name in ("vectors", "first", "names", "stars"):
            answer = client.infer("full", inputs_of(*((text, None) for text in texts)), task=name)
            for row, text in enumerate(texts):
                values = tasks.values(name, text, None)
                output = answer["embedding" if TASKS[name][0] == "embedding" else "logits"][row]
                if values.ndim == 2:  # rows are padded to the longest
                    assert not output[len(values) :].any()
                    output = output[: len(values)]
                np.testing.assert_allclose(output, values, atol=1e-4 * max(1.0, float(np.abs(values).max())))


def test_options_and_requested_outputs(served: Served, tasks: Tasks) -> None:
    with Client(served.url("grpc")) as client:
        text = inputs_of(("hotel", None))
        short = client.infer("full", text, task="vectors", outputs=["embedding"], dimensions=5, prompt="query")
        assert set(short) == {"embedding"}
        whole = tasks.values("vectors", PROMPTS["query"] + "hotel", None)[:5]
        np.testing.assert_allclose(short["embedding"][0], whole / np.linalg.norm(whole), atol=1e-4)
        listed = client.infer("full", text, task="topics", outputs=["labels"], threshold=0.0)["labels"][0, 0]
        assert len(json.loads(listed)) == 3
        assert "label" not in client.infer("full", text, task="stars")


def test_answers_are_counted_by_task(served: Served, tasks: Tasks) -> None:
    """By kind of task, of which two tasks here are embeddings; what earlier tests asked may be published late."""
    kinds = Counter(task for task, *_ in TASKS.values())
    least = {f"answered_{what}_total": times for what, times in (("requests", 1), ("rows", 2), ("tokens", 6))}

    def read() -> dict[tuple[str, str], float]:
        page = served.server.metrics_text()
        pairs = [(family, task) for family in (*least, "found_total") for task in kinds]
        return {(f, task): published(page, f"tidal_pets_{f}", model="full", task=task) for f, task in pairs}

    before = read()
    wanted = {(family, task): times * kinds[task] for family, times in least.items() for task in kinds}
    wanted["found_total", "fill-mask"] = 2
    with Client(served.url("grpc")) as client:
        for name, (task, *_) in TASKS.items():
            query = ("[MASK] hotel" if task == "fill-mask" else "hotel", "hotel" if task in PAIRED else None)
            client.infer("full", inputs_of(query, query), task=name)
    assert until(lambda: all(value - before[key] >= wanted.get(key, 0) for key, value in read().items()))


def test_a_file_is_embedded_by_a_task(served: Served, tasks: Tasks, tmp_path: Path) -> None:
    texts, out = make_texts(9, seed=12), tmp_path / "out.npy"
    (tmp_path / "in.txt").write_text("\n".join(texts))
    command = ["embed", str(tmp_path / "in.txt"), "-m", "full", "-o", str(out), "--url", served.url("http")]
    done = CliRunner().invoke(build_app(), [*command, "--task", "vectors", "--prompt", "query"])
    assert done.exit_code == 0, done.output
    wanted = [tasks.values("vectors", PROMPTS["query"] + text, None) for text in texts]
    np.testing.assert_allclose(np.load(out), wanted, atol=1e-4)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_methods_of_clients_for_words(served: Served, tasks: Tasks, protocol: str) -> None:
    texts = make_texts(70, seed=13)  # more rows than a request has
    masked = "[MASK] a hotel [MASK]"
    with Client(served.url(protocol)) as client:
        vectors = client.sparse_embed("full", texts, task="terms")
        predictions = client.predict_masks("full", masked, task="words", top_k=2)
    for text, vector in zip(texts, vectors, strict=True):
        check_terms(tasks.values("terms", text, None), np.array(vector.indices), np.array(vector.weights))
    scores = tasks.values("words", masked, None).reshape(MAX_MASKS, -1)
    assert [[each.token_id for each in mask] for mask in predictions] == [
        np.argsort(-own)[:2].tolist() for own in scores[:2]
    ]

    async def ask() -> Any:
        async with AsyncClient(served.url(protocol)) as client:
            return await client.predict_masks("full", masked, task="words", top_k=2)

    assert [[each.token for each in mask] for mask in asyncio.run(ask())] == [
        [each.token for each in mask] for mask in predictions
    ]


def test_the_command_prints_words(served: Served, tasks: Tasks) -> None:
    command = ["infer", "full", "--url", served.url("http"), "--text"]
    done = CliRunner().invoke(build_app(), [*command, "[MASK] hotel", "--task", "words"])
    assert done.exit_code == 0, done.output
    best = int(tasks.values("words", "[MASK] hotel", None).reshape(MAX_MASKS, -1)[0].argmax())
    assert tasks.base.tokenizer.decode([best]) in done.output
    done = CliRunner().invoke(build_app(), [*command, "hotel", "--task", "terms"])
    assert done.exit_code == 0, done.output
    assert str(int(tasks.values("terms", "hotel", None).argmax())) in done.output


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_context_without_an_answer(served: Served, base: Base, tasks: Tasks, protocol: str) -> None:
    """A task whose questions may have none, beside one whose questions have one, and contexts without any token."""
    folder, terms = served.folder("full"), tasks.terms["answers"]
    unsure = replace(terms, head=replace(terms.head, settings={"impossible_answers": True}))
    add_task(folder, f"unsure-{protocol}", "lora", unsure, base.layers, MADE)
    texts = make_texts(40, seed=11, longest=12)
    wanted = []
    try:
        with Client(served.url(protocol)) as client:
            for question, context in zip(texts[:20], texts[20:], strict=True):
                values = tasks.values("answers", question, context)
                encoded = base.tokenizer(question, context)
                wanted.append(answer_or_none(values, encoded, context))
                got = client.infer("full", inputs_of((question, context)), task=f"unsure-{protocol}")
                place = got["start"][0, 0], got["end"][0, 0]
                assert place == (wanted[-1] or (0, 0)), (question, context)
                assert got["answer"][0, 0].decode() == ("" if wanted[-1] is None else context[slice(*wanted[-1])])
                check(tasks, ("answers", question, context), client.infer(
                    "full", inputs_of((question, context)), task="answers"))  # fmt: skip
            blank = inputs_of(("who is it", "\u200b"))
            for task, score in (("answers", 0.0), (f"unsure-{protocol}", 1.0)):
                got = client.infer("full", blank, task=task)
                found = [got[name][0, 0] for name in ("answer", "start", "end", "score")]
                assert found == [b"", 0, 0, pytest.approx(score)]
            assert json.loads(client.infer("full", inputs_of(("\u200b", None)), task="names")["entities"][0, 0]) == []
    finally:
        remove_task(folder, f"unsure-{protocol}")
    assert {each is None for each in wanted} == {True, False}


BAD: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("relevance", inputs_of(("hotel", None)), {}, "text_pair is missing"),
    ("vectors", inputs_of(("hotel", "film")), {}, "text_pair was sent, and an embedding is of one text"),
    ("vectors", inputs_of(("hotel", None)), {"dimensions": 9999}, "'dimensions' is 9999; this model gives up to"),
    ("vectors", inputs_of(("hotel", None)), {"prompt": "quary"}, "did you mean 'query'"),
    ("stars", inputs_of(("hotel", None)), {"outputs": ["label"]},
     "the output 'label' was requested of task 'stars', which is of regression and has the outputs logits, score"),
    ("names", {"text_input": np.array([[b"\xff"]], object)}, {}, "is not valid UTF-8"),
    ("names", inputs_of(("", None)), {}, "is empty"),
    ("topics", inputs_of(("hotel", None)), {"threshold": 2}, "threshold"),
    ("words", inputs_of(("hotel", None)), {}, "text_input row 0 has 0 masked words; this model accepts 1 to 3, each"),
    ("words", inputs_of(("[MASK] " * 4, None)), {}, "has 4 masked words"),
    ("words", inputs_of(("[MASK]", "film")), {}, "text_pair was sent, and masked words are those of one text"),
    ("words", inputs_of(("[MASK]", None)), {"top_k": 0}, "top_k"),
    ("terms", inputs_of(("hotel", "film")), {}, "text_pair was sent, and an embedding is of one text"),
    ("terms", inputs_of(("hotel", None)), {"outputs": ["predictions"]},
     "requested of task 'terms', which is of sparse-embedding and has the outputs indices, weights"),
]  # fmt: skip


def test_bad_requests_fail_alone(served: Served, tasks: Tasks) -> None:
    good = queries(21, seed=9)

    async def ask() -> list[Any]:
        async with AsyncClient(served.url("grpc")) as client:
            calls = [client.infer("full", inputs_of((text, pair)), task=name) for name, text, pair in good]
            calls += [client.infer("full", inputs, task=name, **options) for name, inputs, options, _ in BAD]
            return await asyncio.gather(*calls, return_exceptions=True)

    answers = asyncio.run(ask())
    for query, answer in zip(good, answers, strict=False):
        assert not isinstance(answer, RequestError), (query, answer)
        check(tasks, query, answer)
    for (name, _, _, message), error in zip(BAD, answers[len(good) :], strict=True):
        assert isinstance(error, InvalidArgument), (name, error)
        assert message in str(error)
