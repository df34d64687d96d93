"""Texts that are longer than a shared encoder reads, in a real server: windows as transformers' tokenizers cut them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from testing.pets import MADE, MAX_LENGTH, Base
from testing.task_heads import expected, random_head
from testing.truth import Truth, random_terms
from tests.pets.served.conftest import Served
from tests.pets.served.test_heads import inputs_of
from tests.pets.served.texts import make_texts
from tidal.encoder_tasks.spans import Window, best_answers, word_bounds
from tidal.pets.tasks.folder import add_task
from tidal.pets.terms import TaskTerms
from tidal.tasks.folder import remove_task
from tidal_client import Client, InvalidArgument

pytestmark = pytest.mark.server

TASKS = {
    "names": "token-classification",
    "vectors": "embedding",
    "answers": "question-answering",
    "mood": "classification",
}
# The default overlap of windows over tokens: half of the encoder's limit.
OVERLAP = MAX_LENGTH // 2
LONG, LONGER = " ".join(make_texts(6, seed=1)), " ".join(make_texts(14, seed=2))
# Characters of several bytes and code points.
SIGNS = "  " + "🎉 book e\u0301te\u0301 👩\u200d👧 José hotel 東京 " * 12


class Tasks:
    """The tasks' own models, and the windows over texts."""

    def __init__(self, base: Base) -> None:
        self.base = base
        self.terms: dict[str, TaskTerms] = {}
        for seed, (name, task) in enumerate(TASKS.items(), 1):
            head = random_head(task, base.layers.width, seed)
            self.terms[name] = replace(random_terms("low_rank", base.layers, seed), head=head)
        self.truths = {name: Truth(base.model, terms) for name, terms in self.terms.items()}

    def windows(self, overlap: int, *texts: str) -> Any:
        """The windows that the tokenizer of transformers makes; of a pair the second text is cut."""
        return self.base.tokenizer(
            *texts, truncation=True if len(texts) == 1 else "only_second", max_length=MAX_LENGTH, stride=overlap,
            return_overflowing_tokens=True, return_offsets_mapping=True,
        )  # fmt: skip

    def values(self, name: str, window: Any) -> npt.NDArray[Any]:
        """What the task's own model computes for one window."""
        return expected(self.truths[name], self.terms[name].head, window.ids, window.type_ids)

    def labels(self, text: str) -> npt.NDArray[Any]:
        """Scores of the text's tokens, without the special ones: of each from the window with most around it."""
        found = self.windows(OVERLAP, text).encodings
        step = MAX_LENGTH - 2 - OVERLAP
        best: dict[int, tuple[int, Any]] = {}
        for number, window in enumerate(found):
            values = self.values("names", window)[1:-1]
            for place, own in enumerate(values):
                left = place if number else 999
                right = len(values) - 1 - place if number < len(found) - 1 else 999
                token = number * step + place
                if token not in best or min(left, right) > best[token][0]:
                    best[token] = min(left, right), own
        return np.stack([best[token][1] for token in range(len(best))])

    def vector(self, text: str) -> npt.NDArray[Any]:
        """Mean of the windows' vectors by their tokens, which do not overlap; the special ones count once."""
        found = self.windows(0, text).encodings
        weights = np.array([len(window.ids) - (2 if number else 0) for number, window in enumerate(found)])
        mean = weights @ np.stack([self.values("vectors", window) for window in found]) / weights.sum()
        return np.asarray(mean / np.linalg.norm(mean) if self.terms["vectors"].head.settings["normalized"] else mean)

    def answers(self, question: str, context: str, top_k: int, *, windows: int | None = None) -> list[Any]:
        """Best answers over the windows, or the first of them."""
        encoded, parts = self.windows(OVERLAP, question, context), []
        for number, window in enumerate(encoded.encodings[:windows]):
            values = self.values("answers", window)
            inside = np.array([part == 1 for part in encoded.sequence_ids(number)])
            words = np.array([-1 if word is None else word for word in encoded.word_ids(number)])
            bounds = word_bounds(np.array(window.offsets), np.where(inside, words, -1))
            parts.append(Window(values[:, 0], values[:, 1], inside, *bounds))
        return list(best_answers(parts, context, top_k=top_k))


@pytest.fixture(scope="module")
def tasks(served: Served, base: Base) -> Iterator[Tasks]:
    found = Tasks(base)
    folders = [served.folder(model) for model in ("strided", "cut")]
    for folder in folders:
        for name, terms in found.terms.items():
            add_task(folder, name, "lora", terms, base.layers, MADE)
    yield found
    for folder in folders:
        for name in TASKS:
            remove_task(folder, name)


@pytest.fixture(params=["grpc", "http"])
def client(request: pytest.FixtureRequest, served: Served) -> Iterator[Client]:
    with Client(served.url(request.param)) as made:
        yield made


def test_scores_of_tokens_are_merged(client: Client, tasks: Tasks) -> None:
    answer = client.infer(
        "strided", inputs_of(("book a hotel", None), (LONG, None), (LONGER, None), (SIGNS, None)), task="names"
    )
    assert len(tasks.windows(OVERLAP, LONGER).encodings) > 4
    for row, text in ((1, LONG), (2, LONGER), (3, SIGNS)):
        wanted = tasks.labels(text)
        assert answer["input_tokens"][row, 0] == len(wanted) + 2
        np.testing.assert_allclose(answer["logits"][row, 1 : len(wanted) + 1], wanted, atol=1e-3)
        assert all(text[each["start"] : each["end"]] == each["text"] for each in json.loads(answer["entities"][row, 0]))
    alone = client.infer("strided", inputs_of(("book a hotel", None)), task="names")
    np.testing.assert_allclose(answer["logits"][0, : alone["logits"].shape[1]], alone["logits"][0], atol=1e-4)


def test_vectors_are_pooled_over_windows(client: Client, tasks: Tasks) -> None:
    answer = client.infer("strided", inputs_of((LONG, None), ("hotel", None), (LONGER, None)), task="vectors")
    for row, text in enumerate((LONG, "hotel", LONGER)):
        np.testing.assert_allclose(answer["embedding"][row], tasks.vector(text), atol=1e-4)
    short = client.infer("strided", inputs_of((LONG, None)), task="vectors", outputs=["embedding"], dimensions=4)
    assert short["embedding"].shape == (1, 4)


def test_answers_are_compared_over_windows(client: Client, tasks: Tasks) -> None:
    question = "book a hotel"
    for context in (LONG, LONGER, "a film"):
        answer = client.infer("strided", inputs_of((question, context)), task="answers", top_k=4)
        wanted = tasks.answers(question, context, 4)
        found = json.loads(answer["answers"][0, 0])
        assert [(each["start"], each["end"]) for each in found] == [(each.start, each.end) for each in wanted]
        np.testing.assert_allclose([each["score"] for each in found], [each.score for each in wanted], atol=2e-3)


def test_a_context_is_truncated_and_not_its_question(client: Client, tasks: Tasks) -> None:
    question = "book a hotel"
    answer = client.infer("cut", inputs_of((question, LONGER)), task="answers")
    (best,) = tasks.answers(question, LONGER, 1, windows=1)
    assert (answer["start"][0, 0], answer["end"][0, 0]) == (best.start, best.end)
    whole = tasks.values("vectors", tasks.windows(0, LONGER).encodings[0])
    found = client.infer("cut", inputs_of((LONGER, None)), task="vectors", outputs=["embedding"])["embedding"]
    np.testing.assert_allclose(found[0], whole, atol=1e-4)


def test_what_has_no_windows_is_refused(client: Client, tasks: Tasks) -> None:
    with pytest.raises(InvalidArgument, match=f"tokens; this model reads at most {MAX_LENGTH}"):
        client.infer("strided", inputs_of((LONG, None)), task="mood")
    with pytest.raises(InvalidArgument, match="tokens beside the text of text_pair; this model reads at most"):
        client.infer("strided", inputs_of((LONG, "a film")), task="answers")
    endless = "hotel " * (17 * MAX_LENGTH)
    with pytest.raises(InvalidArgument, match=f"this model reads at most {16 * MAX_LENGTH}"):
        client.infer("strided", inputs_of((endless, None)), task="names")
    ids = {"input_ids": np.full((1, MAX_LENGTH + 1), 7, np.int64)}
    with pytest.raises(InvalidArgument, match=f"{MAX_LENGTH + 1} tokens; this model reads at most {MAX_LENGTH}"):
        client.infer("strided", ids, task="vectors")
