"""The ensembles of `model_repository` over tiny models with the names of their steps, served by `tidal serve`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from testing.cascades import LARGE, SMALL, Cascades
from testing.classifiers import build_classifier
from testing.pets import Base
from testing.sentence_models import add_sentence_files, make_embedding_model, make_tiny_encoder
from testing.vision import Vision
from tests.otas.served.conftest import vision
from tests.pets.served.conftest import base
from tests.tabi.conftest import cascades
from tidal.server.child import RunningServer, tidal_serve

__all__ = ["base", "cascades", "vision"]

ENSEMBLES = ("image_to_label", "retrieve_and_rerank", "text_to_checked_label", "text_to_label")
PASSAGES = (
    "book a hotel near the station", "the weather in the city is bad", "a good song by the actor", "cancel my flight",
    "change the booking of the hotel 🎉", "bad music", "the flight to the city", "what an actor , what a song",
)  # fmt: skip
CHECKS = ("adapter_1", "lora_0")
IMAGE_TASKS = {"animals": 3, "moods": 2}
# Above the confidence of about half of the texts.
_CUTOFF = 0.6
_COMMITTED = Path(__file__).parents[2] / "model_repository"


class Retrieval:
    """The unmodified models behind `retrieve_and_rerank`, which run one text alone."""

    def __init__(self, folder: Path) -> None:
        self.embedder = make_embedding_model(folder / "embedder")
        self.reranker = make_tiny_encoder(
            folder / "reranker", "BertForSequenceClassification", id2label={"0": "score"}, label2id={"score": 0}
        )
        add_sentence_files(self.reranker, [("Transformer", {})], options={"model_type": "CrossEncoder"})

    @cached_property
    def _models(self) -> tuple[Any, Any, Any]:
        import transformers

        return (
            transformers.AutoTokenizer.from_pretrained(self.embedder),
            transformers.AutoModel.from_pretrained(self.embedder).eval(),
            transformers.AutoModelForSequenceClassification.from_pretrained(self.reranker).eval(),
        )

    def embed(self, text: str) -> npt.NDArray[np.float32]:
        """The normalised mean of the vectors of tokens."""
        import torch

        tokenizer, model, _ = self._models
        with torch.inference_mode():
            mean = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0).numpy()
        return np.asarray(mean / np.linalg.norm(mean), np.float32)

    def score(self, query: str, text: str) -> float:
        """The sigmoid of the reranker's logit."""
        import torch

        tokenizer, _, model = self._models
        with torch.inference_mode():
            return float(model(**tokenizer(query, text, return_tensors="pt")).logits[0, 0].sigmoid())

    def publish(self, repository: Path) -> None:
        """Build both models, and publish `passages` with the vectors of the unmodified one."""
        lengths = {"lengths": [64], "threads": 1, "max_batch": 8}
        build_classifier(repository, self.embedder, name="embedder", **lengths)
        build_classifier(repository, self.reranker, name="reranker", **lengths)
        version = repository / "passages" / "1"
        version.mkdir(parents=True)
        parameter = 'parameters { key: "texts" value: { string_value: "3" } }\n'
        (repository / "passages" / "config.pbtxt").write_text(f'backend: "nearest"\n{parameter}')
        (version / "texts.txt").write_text("".join(f"{text}\n" for text in PASSAGES))
        np.save(version / "vectors.npy", np.stack([self.embed(text) for text in PASSAGES]))


@pytest.fixture(scope="session")
def retrieval(tmp_path_factory: pytest.TempPathFactory) -> Retrieval:
    return Retrieval(tmp_path_factory.mktemp("retrieval"))


@pytest.fixture(scope="session")
def server(
    cascades: Cascades, base: Base, vision: Vision, retrieval: Retrieval, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("ensembles")
    for level in (SMALL, LARGE):
        cascades.copy_level(repository, level)
    cascades.copy_level(repository, LARGE, "intents")
    cascades.publish(repository, "intents_cascade", _CUTOFF)
    checks = base.copy(repository, "encoder")
    for task in CHECKS:
        kind, _, seed = task.rpartition("_")
        base.add(checks, kind, int(seed))
    images = vision.copy(repository, "digits")
    for task, classes in IMAGE_TASKS.items():
        vision.add(images, task, classes)
    retrieval.publish(repository)
    for name in ENSEMBLES:
        shutil.copytree(_COMMITTED / name, repository / name)
    # Only the ensembles are named: `tidal serve` adds the models of their steps.
    named = [part for name in ENSEMBLES for part in ("--model", name)]
    with tidal_serve(repository, "--exit-timeout", "3", *named) as running:
        yield running


@pytest.fixture(params=["grpc", "http"])
def url(request: pytest.FixtureRequest, server: RunningServer) -> str:
    """The server over each protocol in turn."""
    return str(getattr(server, request.param))
