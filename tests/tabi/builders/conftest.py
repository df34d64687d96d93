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

from testing.building import short_timing
from testing.models import make_tiny_classifier
from tests.tabi.builders.command import Done, tidal_build
from tests.tabi.builders.toy import tokenizer_of
from tidal.text.words import EncodedWords, WordTokenizer
from tidal_builders.tabi import search
from tidal_builders.tabi.collect import LevelRunner
from tidal_builders.texts import make_texts

LABELS = ("negative", "neutral", "positive")
# Small and fast to build; their latencies are not representative.
RUNTIMES = {"lengths": [16, 64], "form": "dynamic", "max_batch": 1, "threads": 1, "contexts": 1}
RATED_COLUMNS = {"text": "one", "pair": "two", "label": "score"}

# Attributes that reduce the search to few candidates, by dotted path.
SHORT_SEARCH = {
    f"tidal_builders.tabi.search.{name}": getattr(search, name)[1:2] for name in ("CUTOFFS", "SLOPES", "SCALES")
}


class Built(NamedTuple):
    """A spec, the repository with what it describes, and the command's result. Read-only: see `copied`."""

    spec: Path
    repository: Path
    done: Done


@contextmanager
def pinned_code() -> Iterator[None]:
    """Pin the code hashes, so that changes of the code do not make builds stale."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidal_builders.fingerprint.hash_code", lambda modules: "code")
        yield


# Per module, not per session: the same process tests builders of other folders. Fixtures of session scope pin the
# code themselves.
@pytest.fixture(scope="module", autouse=True)
def _pinned() -> Iterator[None]:
    with pinned_code(), short_timing():
        yield


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the models `small` and `large`, which have their labels in different orders."""
    folder = tmp_path_factory.mktemp("models")
    make_tiny_classifier(folder / "small", layers=1, hidden=32, labels=LABELS, max_position=64)
    make_tiny_classifier(folder / "large", layers=2, hidden=64, labels=LABELS[::-1], max_position=64, seed=1)
    return folder


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Short texts, two of which are the same, and one longer than any model's input."""
    made = make_texts(118, seed=3)
    return [*made, made[0], " ".join(made[:30])]


@pytest.fixture(scope="session")
def labelled(models: Path, texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A labelled file whose labels are the answers of the large model."""
    path = tmp_path_factory.mktemp("data") / "labelled.tsv"
    answers = answers_of(models / "large", texts)
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in zip(texts, answers, strict=True)))
    return path


def answers_of(model: Path, texts: list[str]) -> list[str]:
    """Labels that the source model gives to texts."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer, source = AutoTokenizer.from_pretrained(model), AutoModelForSequenceClassification.from_pretrained(model)
    with torch.inference_mode():
        encoded = [tokenizer(text, truncation=True, return_tensors="pt") for text in texts]
        numbers = [int(source.eval()(**each).logits[0].argmax()) for each in encoded]
    return [source.config.id2label[number] for number in numbers]


def values_of(model: Path, queries: Sequence[tuple[str, ...]]) -> list[float]:
    """Values that the source model, a regression, gives to texts or pairs of texts."""
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
    # Measuring the overhead of serving takes a server per build; only the tests of that measurement do it.
    content["latencies"] = "engines"
    path.write_text(yaml.safe_dump({**content, "target": {"accuracy": 0.9}, **fields}))
    return path


@contextmanager
def steady_latencies() -> Iterator[None]:
    """Let the small level take a fifth of the large one's time: measured times on a busy machine vary too much."""
    once = LevelRunner._run_one

    def steady(self: LevelRunner, query: EncodedWords) -> Any:
        level_ms = 1.0 if self.name == "small" else 5.0
        return dataclasses.replace(once(self, query), latency_ms=level_ms * (1 + len(query.ids) / 64))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LevelRunner, "_run_one", steady)
        yield


@contextmanager
def short_search() -> Iterator[None]:
    """Reduce the search to few candidates and draw no plots, for tests that need any cascade."""
    with pytest.MonkeyPatch.context() as patch:
        for path, value in SHORT_SEARCH.items():
            patch.setattr(path, value)
        omit_plots(patch)
        yield


def omit_plots(patch: pytest.MonkeyPatch) -> None:
    """Let builds write empty files instead of plots, which would take longer than all else."""
    for name in ("plot_candidates", "plot_reliability"):
        patch.setattr(f"tidal_builders.tabi.publish.{name}", lambda _report, path: path.touch())


@pytest.fixture(scope="session")
def built(models: Path, labelled: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built")
    spec = write_spec(folder / "reviews.yaml", models, labelled)
    with pinned_code(), short_timing(), steady_latencies():
        done = tidal_build(spec, "--repository", folder / "repository")
    assert done.code == 0, done.stderr
    return Built(spec, folder / "repository", done)


@pytest.fixture(scope="session")
def rated(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A cascade of two regressions over pairs; its labels are the values of the large model."""
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
    with pinned_code(), short_timing(), short_search():
        done = tidal_build(spec, "--repository", folder / "repository")
    assert done.code == 0, done.stderr
    return Built(spec, folder / "repository", done)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> WordTokenizer:
    """The tokenizer of `toy.Toy`."""
    return tokenizer_of(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def copied(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Built:
    """A copy that the test may change. Builds of it draw no plots."""
    shutil.copytree(built.repository, tmp_path / "repository")
    shutil.copyfile(built.spec, tmp_path / "reviews.yaml")
    omit_plots(monkeypatch)
    return Built(tmp_path / "reviews.yaml", tmp_path / "repository", built.done)


@pytest.fixture
def no_model_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if a level is run or built."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a model was run or built")

    monkeypatch.setattr("tidal_builders.tabi.collect.open_model", refuse)
    monkeypatch.setattr("tidal_builders.arlo.build.ArloStages", refuse)
