"""A cascade of rerankers: built from a spec, served, and compared with the unmodified models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from testing.building import short_timing
from testing.models import make_tiny_classifier
from testing.sentence_models import add_sentence_files
from testing.servers import RunningServer, running_server
from tests.tabi.builders.command import Done, tidal_build
from tests.tabi.builders.conftest import (
    RATED_COLUMNS,
    pinned_code,
    short_search,
    steady_latencies,
    values_of,
    write_spec,
)
from tidal.repository.config import read_config
from tidal.tabi.equations import request_key
from tidal.tabi.manifest import TabiManifest, load_tabi_manifest
from tidal.tabi.query_route import Route
from tidal_builders.texts import make_texts
from tidal_client import Client, InvalidArgument

pytestmark = [pytest.mark.slow, pytest.mark.server]

PAIRS = list(zip(make_texts(100, seed=1), make_texts(100, seed=2), strict=True))
QUERY = "is the weather good"
DOCUMENTS = ["good song", "bad weather today", "book the hotel", "cancel it", "a good flight", "the actor was bad"]


@dataclass(frozen=True)
class Rerankers:
    models: Path
    spec: Path
    repository: Path

    @property
    def manifest(self) -> TabiManifest:
        return load_tabi_manifest(self.repository / "reviews/1")


def centre(folder: Path) -> None:
    """Change the bias of a model's output so that the median of its logits is 0."""
    import torch
    from transformers import AutoModelForSequenceClassification

    median = float(np.median(values_of(folder, PAIRS)))
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        model.classifier.bias -= median
    model.save_pretrained(folder)


@pytest.fixture(scope="module")
def rerankers(tmp_path_factory: pytest.TempPathFactory) -> Rerankers:
    """A pair is relevant by the large model's logit; the logits of both models are above 0 for half of the pairs."""
    folder = tmp_path_factory.mktemp("rerankers")
    models = folder / "models"
    for seed, (name, layers, hidden) in enumerate((("small", 1, 32), ("large", 2, 64))):
        made = make_tiny_classifier(
            models / name, layers=layers, hidden=hidden, labels=["score"], max_position=64, seed=seed
        )
        centre(made)
        add_sentence_files(made, [("Transformer", {})], options={"model_type": "CrossEncoder"})
    values = values_of(models / "large", PAIRS)
    data = folder / "pairs.jsonl"
    rows = [{"one": a, "two": b, "score": int(value > 0)} for (a, b), value in zip(PAIRS, values, strict=True)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    target = {"escalation_rate": 1}
    spec = write_spec(folder / "reviews.yaml", models, data, columns=RATED_COLUMNS, task="rerank", target=target)
    with pinned_code(), short_timing(), short_search(), steady_latencies():
        done: Done = tidal_build(spec, "--repository", folder / "repository")
    assert done.code == 0, done.stdout + done.stderr
    return Rerankers(models, spec, folder / "repository")


@pytest.fixture(scope="module")
def server(rerankers: Rerankers) -> Iterator[RunningServer]:
    """All candidates of several levels serve, by their scores."""
    with running_server(rerankers.repository) as running:
        yield running


def test_the_manifest_is_that_of_a_classification_of_relevance(rerankers: Rerankers) -> None:
    manifest = rerankers.manifest
    assert (manifest.task, manifest.pairs, manifest.metric) == ("rerank", True, "accuracy")
    assert manifest.labels == ("irrelevant", "relevant")
    assert all(level.calibration.regression is None for level in manifest.levels)
    outputs = {each["name"] for each in read_config(rerankers.repository / "reviews")["output"]}
    assert outputs == {"score", "level", "confidence", "degraded", "input_tokens", "pruned_text", "pruned_pair"}


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_scores_follow_the_equations(rerankers: Rerankers, server: RunningServer, scheme: str) -> None:
    """Without pruning, of the candidate that serves: the unmodified models' logits through Eq. 3, 4 and 6."""
    manifest, query = rerankers.manifest, QUERY
    chosen = manifest.candidates[manifest.chosen]
    logits = {
        level.name: values_of(rerankers.models / level.name, [(query, each) for each in DOCUMENTS])
        for level in manifest.levels
    }
    with Client(f"{scheme}://{getattr(server, scheme)}") as client:
        ranked = client.rerank("reviews", query, DOCUMENTS)
        assert sorted(each.index for each in ranked) == list(range(len(DOCUMENTS)))
        assert [each.score for each in ranked] == sorted((each.score for each in ranked), reverse=True)
        for number, document in enumerate(DOCUMENTS):
            texts = [query.encode(), document.encode()]
            inputs: dict[str, Any] = {
                name: np.array([[text]], object) for name, text in zip(("text_input", "text_pair"), texts, strict=True)
            }
            got = client.infer("reviews", inputs)
            if [text.item() for text in (got["pruned_text"], got["pruned_pair"])] != texts:
                continue  # the next level has read fewer words
            route = Route(manifest, chosen, request_key("", texts), 0, 1, last_level=len(manifest.levels) - 1)
            while route.feed([logits[manifest.levels[route.level].name][number]]):
                pass
            answer = route.answer()
            assert got["level"].item() == answer.level
            assert got["score"].item() == pytest.approx(answer.outputs[1], abs=1e-3)
            assert got["confidence"].item() == pytest.approx(answer.confidence, abs=1e-3)
        with pytest.raises(InvalidArgument, match="text_pair"):
            client.infer("reviews", {"text_input": inputs["text_input"]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": ["no", "yes"]}, "field 'labels': a cascade of rerankers has no labels of its own, got no, yes"),
        ({"metric": "pearson"}, "field 'metric': a rerank cascade has accuracy, got pearson"),
        ({"tolerance": 0.1}, "field 'tolerance': for regressions alone, and this is a rerank cascade"),
        ({"columns": {"text": "one", "label": "score"}}, "has one text per row, and a reranker scores pairs"),
    ],
)
def test_specs_that_do_not_fit_are_refused(
    rerankers: Rerankers, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    content = {**yaml.safe_load(rerankers.spec.read_text()), **change}
    (tmp_path / "reviews.yaml").write_text(yaml.safe_dump(content))
    done = tidal_build(tmp_path / "reviews.yaml", "--repository", tmp_path / "repository")
    assert done.code != 0
    assert message in " ".join(done.stderr.split())


def test_a_classifier_is_no_level(rerankers: Rerankers, tmp_path: Path) -> None:
    content = yaml.safe_load(rerankers.spec.read_text())
    content["levels"][1]["model"] = str(make_tiny_classifier(tmp_path / "classes", labels=["no", "yes"]))
    (tmp_path / "reviews.yaml").write_text(yaml.safe_dump(content))
    done = tidal_build(tmp_path / "reviews.yaml", "--repository", tmp_path / "repository")
    assert "level 'large': a reranker has 1 output, got 2" in " ".join(done.stderr.split())
