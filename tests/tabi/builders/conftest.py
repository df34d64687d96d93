"""A cascade of two tiny classifiers, built once."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from testing.models import make_tiny_classifier
from tests.tabi.builders.command import Done, tidal_build
from tidal.text.words import EncodedWords
from tidal_builders.tabi import search
from tidal_builders.tabi.collect import LevelRunner
from tidal_builders.texts import make_texts

LABELS = ("negative", "neutral", "positive")
# Small and fast to build; what is measured on them means nothing.
RUNTIMES = {"lengths": [16, 64], "form": "dynamic", "max_batch": 1, "threads": 1, "contexts": 1}
RATED_COLUMNS = {"text": "one", "pair": "two", "label": "score"}


class Built(NamedTuple):
    """A spec, the repository with what it describes, and what the command said. Not to be changed; see `copied`."""

    spec: Path
    repository: Path
    done: Done


@contextmanager
def pinned_code() -> Iterator[None]:
    """Pin the code hashes, so that changes of the code do not make builds stale."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidal_builders.fingerprint.hash_code", lambda modules: "code")
        yield


# Of a module, not of the session: builders of other folders are tested in the same process. What is built for the whole
# session pins the code itself.
@pytest.fixture(scope="module", autouse=True)
def _pinned() -> Iterator[None]:
    with pinned_code():
        yield


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the models `small` and `large`, whose labels stand in another order."""
    folder = tmp_path_factory.mktemp("models")
    make_tiny_classifier(folder / "small", layers=1, hidden=32, labels=LABELS, max_position=64)
    make_tiny_classifier(folder / "large", layers=2, hidden=64, labels=LABELS[::-1], max_position=64, seed=1)
    return folder


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Some of them the same, and one longer than any model reads."""
    made = make_texts(118, seed=3)
    return [*made, made[0], " ".join(made[:30])]


@pytest.fixture(scope="session")
def labelled(models: Path, texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The large model's answers as the truth."""
    path = tmp_path_factory.mktemp("data") / "labelled.tsv"
    answers = answers_of(models / "large", texts)
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in zip(texts, answers, strict=True)))
    return path


def answers_of(model: Path, texts: list[str]) -> list[str]:
    """Labels that the source model itself gives."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer, source = AutoTokenizer.from_pretrained(model), AutoModelForSequenceClassification.from_pretrained(model)
    with torch.inference_mode():
        encoded = [tokenizer(text, truncation=True, return_tensors="pt") for text in texts]
        numbers = [int(source.eval()(**each).logits[0].argmax()) for each in encoded]
    return [source.config.id2label[number] for number in numbers]


def values_of(model: Path, queries: Sequence[tuple[str, ...]]) -> list[float]:
    """Values that the source model, a regression, itself gives to texts or pairs of them."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer, source = AutoTokenizer.from_pretrained(model), AutoModelForSequenceClassification.from_pretrained(model)
    with torch.inference_mode():
        encoded = [tokenizer(*query, truncation=True, return_tensors="pt") for query in queries]
        return [float(source.eval()(**each).logits[0, 0]) for each in encoded]


def write_spec(path: Path, models: Path, data: Path, **fields: object) -> Path:
    """Write a spec of the two models; fields given replace its own."""
    levels = [{"name": name, "model": str(models / name)} for name in ("small", "large")]
    content = {"kind": "tabi", "name": "reviews", "levels": levels, "data": str(data), "runtimes": RUNTIMES}
    # What the server adds is measured by the tests that are about it: it takes a server for each build.
    content["latencies"] = "engines"
    path.write_text(yaml.safe_dump({**content, "target": {"accuracy": 0.9}, **fields}))
    return path


@contextmanager
def steady_latencies() -> Iterator[None]:
    """The small level takes a fifth of the large one's time: on a busy machine the search would find anything."""
    once = LevelRunner._run_one

    def steady(self: LevelRunner, query: EncodedWords) -> Any:
        level_ms = 1.0 if self.name == "small" else 5.0
        return dataclasses.replace(once(self, query), latency_ms=level_ms * (1 + len(query.ids) / 64))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LevelRunner, "_run_one", steady)
        yield


@contextmanager
def short_search() -> Iterator[None]:
    """A search of few candidates, where none is asked for."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CUTOFFS", "SLOPES", "SCALES"):
            patch.setattr(search, name, getattr(search, name)[1:2])
        yield


@pytest.fixture(scope="session")
def built(models: Path, labelled: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built")
    spec = write_spec(folder / "reviews.yaml", models, labelled)
    with pinned_code(), steady_latencies():
        done = tidal_build(spec, "--repository", folder / "repository")
    assert done.code == 0, done.stderr
    return Built(spec, folder / "repository", done)


@pytest.fixture(scope="session")
def rated(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A cascade of two regressions over pairs; the large model's values are the truth."""
    folder = tmp_path_factory.mktemp("rated")
    models = folder / "models"
    make_tiny_classifier(models / "small", layers=1, hidden=32, labels=["score"], max_position=64)
    make_tiny_classifier(models / "large", layers=2, hidden=64, labels=["score"], max_position=64, seed=1)
    pairs = list(zip(make_texts(100, seed=1), make_texts(100, seed=2), strict=True))
    values = values_of(models / "large", pairs)
    data = folder / "pairs.jsonl"
    rows = [{"one": a, "two": b, "score": value} for (a, b), value in zip(pairs, values, strict=True)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = write_spec(folder / "reviews.yaml", models, data, columns=RATED_COLUMNS, metric="spearman")
    with pinned_code(), short_search():
        done = tidal_build(spec, "--repository", folder / "repository")
    assert done.code == 0, done.stderr
    return Built(spec, folder / "repository", done)


@pytest.fixture
def copied(built: Built, tmp_path: Path) -> Built:
    """A copy to be changed."""
    shutil.copytree(built.repository, tmp_path / "repository")
    shutil.copyfile(built.spec, tmp_path / "reviews.yaml")
    return Built(tmp_path / "reviews.yaml", tmp_path / "repository", built.done)


@pytest.fixture
def no_model_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a level is run or built."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a model was to run")

    monkeypatch.setattr("tidal_builders.tabi.collect.open_model", refuse)
    monkeypatch.setattr("tidal_builders.arlo.build.ArloStages", refuse)
