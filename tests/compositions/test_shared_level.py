"""Two cascades whose small levels are tasks of one encoder, built from specs and served by a real server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from testing.building import short_timing
from testing.cascades import OpenLevel
from testing.models import make_tiny_classifier
from testing.pets import MADE, Base, build
from testing.servers import RunningServer, running_server
from testing.truth import Truth, attention_received
from testing.waiting import until
from tests.tabi.builders.command import Done, tidal_build
from tests.tabi.builders.conftest import LABELS, RUNTIMES, answers_of, pinned_code, steady_latencies
from tidal.catalog.graph import ModelGraph
from tidal.manifest import MANIFEST_FILE
from tidal.pets.tasks.folder import add_task
from tidal.pets.terms import FloatArray, Head, TaskTerms
from tidal.repository.entries import ModelEntry
from tidal.server.change import load
from tidal.server.launch import select_models
from tidal.tabi.equations import request_key
from tidal.tabi.manifest import Level, TabiManifest, load_tabi_manifest
from tidal.tabi.pruning import kept_words, prune_text
from tidal.tabi.query_route import CascadeAnswer, Route
from tidal.tasks.folder import remove_task, tasks_folder
from tidal.text.words import EncodedWords, WordTokenizer
from tidal_builders.tabi import search
from tidal_builders.tabi.collect import LevelRunner
from tidal_builders.tabi.task_levels import TaskRunner
from tidal_builders.texts import make_texts
from tidal_builders.workspace import Workspace
from tidal_client import Client, Unavailable

# By cascade: the task that is its small level, and that task's order of labels.
TASKS = {"reviews": ("mood", LABELS), "notes": ("tone", LABELS[::-1])}
KINDS = {"mood": "lora", "tone": "diff_pruning"}
# Numbers of texts that the small level answers confidently and rightly, and of others.
EASY, HARD = 44, 28
POOL = list(dict.fromkeys(make_texts(260, seed=5)))


@dataclass
class SharedLevel:
    """A repository with the base, its tasks and both cascades, and their sources."""

    folder: Path
    base: Base
    texts: dict[str, list[str]] = field(default_factory=dict)
    done: dict[str, Done] = field(default_factory=dict)
    _terms: dict[str, TaskTerms] = field(default_factory=dict)
    _truths: dict[str, Truth] = field(default_factory=dict)
    _large: dict[str, OpenLevel] = field(default_factory=dict)

    @property
    def repository(self) -> Path:
        return self.base.repository

    def terms(self, task: str) -> TaskTerms:
        """A task of three classes, about equally frequent, with the labels in the order of its cascade."""
        if task not in self._terms:
            terms = self.base.terms(KINDS[task], seed=1)
            truth = Truth(self.base.model, terms)
            mean = np.mean(
                [truth.logits(self.base.tokenizer(text, truncation=True)["input_ids"]) for text in POOL[:40]], axis=0
            )
            bias = (terms.head.bias - mean).astype(np.float32)
            self._terms[task] = replace(terms, head=Head(terms.head.weight, bias, dict(TASKS.values())[task]))
        return self._terms[task]

    @property
    def tasks(self) -> Path:
        return tasks_folder(self.repository / "base")

    def add(self, task: str) -> None:
        add_task(self.tasks, task, KINDS[task], self.terms(task), self.base.layers, MADE)

    def logits(self, task: str, query: EncodedWords) -> FloatArray:
        """Logits of the unmodified source model with the task merged, in the cascade's order of labels."""
        if task not in self._truths:
            self._truths[task] = Truth(self.base.model, self.terms(task))
        return self._truths[task].logits(query.ids.tolist(), query.type_ids.tolist())

    def received(self, task: str, query: EncodedWords) -> FloatArray:
        """Attention that each token receives in the same model."""
        self.logits(task, query)
        return attention_received(self._truths[task], query.ids.tolist())

    def label(self, name: str, large: list[str]) -> Path:
        """Write a cascade's labelled file: the large model is always right, the task where it is confident."""
        task, labels = TASKS[name]
        reader = WordTokenizer(self.repository / "base/1/tokenizer/tokenizer.json", 64, truncate=True)
        easy, hard = [], []
        for text, label in zip(POOL, large, strict=True):
            (query,) = reader.encode([text.encode()], None)
            assert isinstance(query, EncodedWords)
            logits = self.logits(task, query)
            margin = float(np.diff(np.sort(logits)[-2:])[0])
            (easy if labels[int(logits.argmax())] == label else hard).append((margin, text, label))
        chosen = sorted(easy, reverse=True)[:EASY] + sorted(hard)[:HARD]
        assert len(chosen) == EASY + HARD
        self.texts[name] = [text for _, text, _ in chosen]
        path = self.folder / f"{name}.tsv"
        path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for _, text, label in chosen))
        return path

    def spec(self, name: str, **fields: Any) -> Path:
        """A cascade's spec: a task, then a model."""
        levels = [
            {"name": "small", "model": "base", "task": TASKS[name][0]},
            {"name": "large", "model": str(self.folder / "large")},
        ]
        content = {"kind": "tabi", "name": name, "levels": levels, "data": str(self.folder / f"{name}.tsv")}
        content["latencies"] = "engines"
        path = self.folder / f"{name}.yaml"
        path.write_text(
            yaml.safe_dump(
                {**content, "runtimes": {**RUNTIMES, "lengths": [64]}, "target": {"escalation_rate": 0.7}, **fields}
            )
        )
        return path

    def manifest(self, name: str) -> TabiManifest:
        folder = ModelEntry(self.repository / name).latest()
        assert folder is not None
        return load_tabi_manifest(folder)

    def force_pruning(self, name: str) -> None:
        """Let the chosen candidate prune, which a search rejects for random models since it costs too much accuracy."""
        path = self.repository / name / "1" / MANIFEST_FILE
        content = json.loads(path.read_text())
        content["candidates"][content["chosen"]]["pruning"] = 0.8
        path.write_text(json.dumps(content))

    def large(self, name: str) -> OpenLevel:
        if name not in self._large:
            level = self.manifest(name).levels[1]
            self._large[name] = OpenLevel(self.repository / level.model / "1", level.order)
        return self._large[name]

    def build(self, spec: Path, repository: Path) -> Done:
        with pinned_code(), short_timing(), steady_latencies(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(search, "CUTOFFS", search.CUTOFFS[::3])
            patch.setattr(search, "SLOPES", search.SLOPES[1:2])
            patch.setattr(search, "SCALES", search.SCALES[1:2])
            return tidal_build(spec, "--repository", repository)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> SharedLevel:
    folder = tmp_path_factory.mktemp("shared-level")
    source = make_tiny_classifier(folder / "source", layers=1, labels=LABELS, max_position=64)
    make_tiny_classifier(folder / "large", layers=2, labels=LABELS, max_position=64, seed=1)
    report = build(source, folder / "repository", "base", max_tokens=64, threads=1, attention_received=True)
    made = SharedLevel(folder, Base(source, folder / "repository", report))
    answers = answers_of(folder / "large", POOL)
    for name, (task, _) in TASKS.items():
        made.add(task)
        made.label(name, answers)
        made.done[name] = made.build(made.spec(name), made.repository)
        made.force_pruning(name)
    return made


class OpenTask:
    """The unmodified source model with a task merged, one query at a time."""

    def __init__(self, shared: SharedLevel, level: Level, version_dir: Path) -> None:
        assert level.task is not None
        self._shared, self._task = shared, level.task
        self._tokenizer = WordTokenizer(version_dir / level.tokenizer.file, level.max_length, truncate=True)

    def read(self, texts: tuple[str, ...]) -> EncodedWords:
        found = self._tokenizer.encode([texts[0].encode()], None)[0]
        assert isinstance(found, EncodedWords)
        return found

    def run(self, query: EncodedWords) -> tuple[FloatArray, FloatArray]:
        return self._shared.logits(self._task, query), self._shared.received(self._task, query)


def offline(shared: SharedLevel, name: str, text: str, request_id: str) -> tuple[CascadeAnswer, str]:
    """A query's answer and the text of the last level, computed without the server."""
    manifest = shared.manifest(name)
    version_dir = shared.repository / name / "1"
    large = shared.large(name)
    levels = (OpenTask(shared, manifest.levels[0], version_dir), large)
    chosen = manifest.candidates[manifest.chosen]
    key = request_key(request_id, [text.encode()])
    route = Route(manifest, chosen, key, 0, 1, last_level=1)
    read: tuple[str, ...] = (text,)
    while True:
        level = levels[route.level]
        query = level.read(read)
        logits, importance = level.run(query)
        if not route.feed(logits):
            return route.answer(), read[0]
        if chosen.pruning is not None:
            assert importance is not None
            read = prune_text(query.texts, query.spans, kept_words(query, importance, chosen.pruning))


@pytest.mark.slow
class TestBuild:
    def test_a_level_that_is_a_task_is_in_the_manifest(self, shared: SharedLevel) -> None:
        for name, (task, labels) in TASKS.items():
            assert shared.done[name].code == 0, shared.done[name].stderr
            manifest = shared.manifest(name)
            small, large = manifest.levels
            assert (small.model, small.task, small.version, small.max_length) == ("base", task, 1, 64)
            assert (large.model, large.task) == (f"{name}_large", None)
            assert (small.attention, large.attention) == (True, False)
            assert manifest.labels == labels  # the first level's
            assert {each.levels for each in manifest.candidates} == {(0,), (1,), (0, 1)}
            assert not (shared.repository / f"{name}_small").exists()
        errors = {shared.manifest(name).levels[0].calibration.ece_before for name in TASKS}
        assert len(errors) == 2

    @pytest.mark.server
    def test_the_overhead_is_measured_through_a_server(self, shared: SharedLevel, tmp_path: Path) -> None:
        spec = tmp_path / "reviews.yaml"
        # Whatever the machine's latencies are, a single level meets this target.
        fields = {"latencies": "served", "target": {"accuracy": 0.5}}
        spec.write_text(yaml.safe_dump({**yaml.safe_load(shared.spec("reviews").read_text()), **fields}))
        shutil.copytree(shared.repository, tmp_path / "r")
        assert shared.build(spec, tmp_path / "r").code == 0
        manifest = load_tabi_manifest(tmp_path / "r/reviews/2")
        serving = manifest.serving
        assert serving is not None, manifest.warnings
        assert set(serving.alone_ms) == {"small", "large"}
        assert [(each.below, each.above) for each in serving.onward] == [("small", "large")]
        assert shared.manifest("reviews").serving is None

    def test_stored_outputs_are_those_of_the_task(self, shared: SharedLevel, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(TaskRunner, "run")  # only results that the build has stored are left
        for name, (task, _) in TASKS.items():
            order = shared.manifest(name).levels[0].order
            work = Workspace(shared.repository / name / ".build/cascade")
            runner = LevelRunner("small", shared.repository / "base/1", order, work, task=task)
            read = runner.encode([(text,) for text in shared.texts[name]])
            outputs = runner.run(read)
            assert outputs.importance is not None
            for query, logits, received in zip(read, outputs.logits, outputs.importance, strict=True):
                np.testing.assert_allclose(logits, shared.logits(task, query), atol=1e-4)
                np.testing.assert_allclose(received, shared.received(task, query), rtol=1e-3, atol=1e-4)

    def test_a_second_build_is_current_until_the_task_is_replaced(self, shared: SharedLevel, tmp_path: Path) -> None:
        spec = shared.spec("reviews")
        with pinned_code():
            assert "is current" in tidal_build(spec, "--repository", shared.repository).stdout
            shutil.copytree(shared.repository, tmp_path / "r")
            tasks = tasks_folder(tmp_path / "r/base")
            terms = shared.terms("mood")
            head = replace(terms.head, bias=terms.head.bias + 1)
            add_task(tasks, "mood", "lora", replace(terms, head=head), shared.base.layers, MADE, replace=True)
            stale = tidal_build(spec, "--repository", tmp_path / "r", "--check")
        assert stale.code == 1
        assert "level small changed" in stale.stdout

    @pytest.mark.parametrize(
        ("level", "message"),
        [
            ({"task": "moood"}, "level 'small': unknown task 'moood': did you mean 'mood'"),
            ({"model": "nothing"}, "level 'small': no version of model 'nothing' is published"),
            (
                {"model": "reviews_large"},
                "level 'small': model 'reviews_large' is of kind arlo; a level with a task needs",
            ),
            ({"labels": ["good", "bad"]}, "level 'small': field 'labels' has 2 names, but the model has 3 classes"),
            ({"labels": ["a", "b", "c"]}, "level 'large': its labels differ from those of the cascade"),
            ({"model": "./base"}, "fields 'task' and 'model': expected the name of a pets model"),
        ],
    )
    def test_errors_name_the_level(
        self, shared: SharedLevel, level: dict[str, Any], message: str, tmp_path: Path
    ) -> None:
        spec = yaml.safe_load(shared.spec("reviews").read_text())
        spec["levels"][0] |= level
        path = tmp_path / "reviews.yaml"
        path.write_text(yaml.safe_dump(spec))
        done = tidal_build(path, "--repository", shared.repository)
        assert done.code == 2
        assert message in done.stderr

    def test_attention_that_the_config_does_not_declare_is_refused(self, shared: SharedLevel, tmp_path: Path) -> None:
        shutil.copytree(shared.repository / "base", tmp_path / "r/base")
        config = tmp_path / "r/base/config.pbtxt"
        hidden = ',\n  { name: "attention_received" data_type: TYPE_FP32 dims: [ -1 ] }'
        config.write_text(config.read_text().replace(hidden, ""))
        done = tidal_build(shared.spec("reviews"), "--repository", tmp_path / "r")
        assert done.code == 2
        assert "gives attention_received, which its config.pbtxt does not declare: add the output" in done.stderr

    def test_a_task_of_other_classes_is_refused(self, shared: SharedLevel, tmp_path: Path) -> None:
        shared.base.add(shared.tasks, "bitfit", 0, "two")
        spec = yaml.safe_load(shared.spec("reviews").read_text())
        spec["levels"][0]["task"] = "two"
        path = tmp_path / "reviews.yaml"
        path.write_text(yaml.safe_dump(spec))
        done = tidal_build(path, "--repository", shared.repository)
        assert done.code == 2
        assert "must have the same classes, got numbers of classes small 2, large 3" in done.stderr


@pytest.fixture(scope="module")
def server(shared: SharedLevel) -> Iterator[RunningServer]:
    with running_server(shared.repository, models=["base", *TASKS]) as running:
        for name in ("base", *TASKS):
            assert not running.load_error(name)
        yield running


@pytest.fixture(params=["grpc", "http"])
def url(request: pytest.FixtureRequest, server: RunningServer) -> str:
    return f"{request.param}://{getattr(server, request.param)}"


@pytest.mark.server
class TestServed:
    def test_selecting_a_cascade_selects_its_encoder(self, shared: SharedLevel) -> None:
        assert [entry.name for entry in select_models(ModelGraph.read(shared.repository), ["reviews"]).served] == [
            "base",
            "reviews",
        ]

    def test_answers_equal_the_routes_computed_offline(self, shared: SharedLevel, url: str) -> None:
        asked = [(name, text, text[:20]) for name in TASKS for text in shared.texts[name][::2]]

        def ask(each: tuple[str, str, str]) -> dict[str, Any]:
            name, text, request_id = each
            return client.infer(name, {"text_input": np.array([[text.encode()]], object)}, request_id=request_id)

        with Client(url) as client, ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, asked))
        last, shortened = [], 0
        for (name, text, request_id), answer in zip(asked, answers, strict=True):
            wanted, read = offline(shared, name, text, request_id)
            last.append(wanted.level)
            shortened += read != text
            assert answer["level"].item() == wanted.level
            assert wanted.label is not None
            assert answer["label"].item().decode() == shared.manifest(name).labels[wanted.label]
            assert answer["pruned_text"].item().decode() == read
            np.testing.assert_allclose(answer["probabilities"][0], wanted.outputs, atol=1e-4)
            assert not answer["degraded"].item()
        assert 0.1 < np.mean(np.array(last) == 1) < 0.95
        assert shortened > 5

    def test_a_removed_task_affects_only_its_own_cascade(self, shared: SharedLevel, url: str) -> None:
        with Client(url) as client:
            remove_task(shared.tasks, "mood")
            try:
                with pytest.raises(Unavailable, match=r"level 1, model 'base', task 'mood': .*unknown task 'mood'"):
                    client.classify("reviews", "good song")
                assert client.classify("notes", "good song").label in LABELS
            finally:
                shared.add("mood")

            def again() -> bool:
                return client.classify("reviews", "good song").label in LABELS

            assert until(again)

    def test_the_cascade_uses_a_newer_version_of_the_base(self, shared: SharedLevel, server: RunningServer) -> None:
        shutil.copytree(shared.repository / "base/1", shared.repository / "base/2")
        assert "base: version 2 serves now, version 1 before" in load(server.control, shared.repository, "base")
        with Client(f"grpc://{server.grpc}") as client:
            answer = client.classify("reviews", "good song")
        assert answer.label in LABELS
        assert not answer.other["degraded"].item()
