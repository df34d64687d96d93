"""`tidal build --relearn`: lengths from a server's metrics, and the builds that use them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testing.building import short_timing
from testing.classifiers import build_classifier
from testing.metrics import published
from testing.models import make_tiny_classifier
from testing.serving import tidal_in_process
from testing.waiting import until
from tidal.arlo.metrics import ArloMetrics, length_bounds
from tidal.errors import InvalidArgument
from tidal.metrics import Metrics
from tidal.repository.entries import ModelEntry
from tidal.server.child import tidal_serve
from tidal.server.gauges import read_metrics
from tidal_builders import relearning
from tidal_builders.arlo.learned_lengths import LEARNED_FILE, LearnedLengths
from tidal_builders.arlo.length_distribution import LengthDistribution
from tidal_client import Client


def tidal(*words: str) -> subprocess.CompletedProcess[str]:
    with short_timing():
        return tidal_in_process(*words, environment=dict(os.environ))


def page_of(lengths: list[int], runtimes: list[int], model: str = "m", version: int = 1) -> str:
    """What a model publishes that has received queries of these lengths."""
    metrics = Metrics("arlo")
    ArloMetrics(metrics, runtimes)._length.observe_all(lengths)
    lines = []
    for sample in metrics.samples():
        if sample.family.startswith("tidal_arlo_query_length_tokens"):
            labels = {"model": model, "version": str(version), **dict(sample.labels)}
            pairs = ",".join(f'{name}="{value}"' for name, value in labels.items())
            lines.append(f"{sample.family}{{{pairs}}} {sample.value}")
    return "\n".join(lines) + "\n"


@given(
    st.lists(st.integers(1, 128), min_size=100, max_size=300), st.sampled_from([[128], [40, 128], [16, 64, 100, 128]])
)
def test_shares_of_ranges_are_those_of_the_queries(lengths: list[int], runtimes: list[int]) -> None:
    learned = LearnedLengths.of_metrics(page_of(lengths, runtimes), "m")
    assert list(learned.upto) == length_bounds(runtimes)
    found = learned.distribution(128).within(learned.upto)
    exact = LengthDistribution.of_lengths(lengths, 128).within(learned.upto)
    np.testing.assert_allclose(found, exact, atol=1e-9)
    assert learned.distribution(128).shares.sum() == pytest.approx(1)
    assert (learned.distribution(128).shares >= 0).all()


def test_versions_are_added_and_other_models_are_not() -> None:
    page = page_of([10] * 60, [128]) + page_of([100] * 40, [128], version=2) + page_of([50] * 999, [128], model="n")
    learned = LearnedLengths.of_metrics(page, "m")
    assert dict(zip(learned.upto, learned.queries, strict=True)) == {
        **dict.fromkeys(learned.upto, 0.0),
        12: 60.0,
        128: 40.0,
    }


def test_a_longer_or_shorter_longest_input_keeps_all_queries() -> None:
    learned = LearnedLengths(upto=(16, 64), queries=(30.0, 70.0))
    assert learned.distribution(256).shares[64:].sum() == 0
    short = learned.distribution(32).shares
    assert (short.sum(), short[:16].sum()) == (pytest.approx(1), pytest.approx(0.3))


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("", "--relearn m: the server has no metrics of an arlo model of this name"),
        (page_of([5] * 99, [128]), "--relearn m: the server has received 99 queries .* expected at least 100"),
    ],
)
def test_too_little_is_refused(page: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        LearnedLengths.of_metrics(page, "m")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / LEARNED_FILE
    LearnedLengths(upto=(16,), queries=(1.0,)).write(file)
    assert LearnedLengths.read(file).upto == (16,)
    file.write_text("{")
    with pytest.raises(InvalidArgument, match=f"{LEARNED_FILE} is damaged: .*; delete it"):
        LearnedLengths.read(file)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # The grid of lengths has one entry for 8 tokens, for which a static runtime is compiled twice.
    return make_tiny_classifier(tmp_path_factory.mktemp("source") / "model", layers=1, max_position=32)


@pytest.mark.parametrize(
    ("fields", "words", "message"),
    [
        ("", ("--relearn", "n"), "--relearn n: no given spec of kind arlo has this name"),
        (
            "lengths_like: even",
            ("--relearn", "m"),
            "of its spec says what the lengths are; remove it",
        ),
        ("lengths: [16]\nform: static", ("--relearn", "m"), "no field of this spec depends on received lengths; set"),
        ("", ("--relearn", "m"), "no `tidal serve` of this user runs on"),
        ("", ("--metrics", "127.0.0.1:1"), "--metrics is for --relearn"),
        ("", ("--relearn", "m", "--metrics", "127.0.0.1:1"), "no metrics at 127.0.0.1:1"),
    ],
)
def test_what_cannot_be_learned_is_said(
    tmp_path: Path, source: Path, fields: str, words: tuple[str, ...], message: str
) -> None:
    spec = tmp_path / "m.yaml"
    spec.write_text(f"kind: arlo\nname: m\nmodel: {source}\n{fields}\n")
    done = tidal("build", str(spec), "--repository", str(tmp_path / "repository"), *words)
    assert done.returncode in (2, 3)
    assert message in done.stderr
    assert not (tmp_path / "repository").exists()


@pytest.mark.server
def test_a_build_chooses_for_the_queries_of_a_server(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, spec = tmp_path / "repository", tmp_path / "m.yaml"
    build_classifier(repository, source, name="m", lengths=[32], form="static", max_batch=1)
    spec.write_text(f"kind: arlo\nname: m\nmodel: {source}\nform: static\nmax_batch: 1\n")
    build = ("build", str(spec), "--repository", str(repository))
    with tidal_serve(repository, "--model", "m") as server:
        monkeypatch.setattr(relearning, "running_servers", lambda: [server.state])  # it keeps its files apart
        with Client(server.grpc) as client:
            for _ in range(5):
                client.infer("m", {"text_input": np.full((30, 1), b"good " * 9, object)}, outputs=["label"])

        def counted() -> float:
            return published(read_metrics(server.state.metrics), "tidal_arlo_query_length_tokens_count", model="m")

        assert until(lambda: counted() == 150)  # metrics are published a little later
        done = tidal(*build, "--relearn", "m")
        assert done.returncode == 0, done.stderr
    entry = ModelEntry(repository / "m")
    learned = LearnedLengths.read(entry.folder / LEARNED_FILE)
    assert dict(zip(learned.upto, learned.queries, strict=True))[12] == 150  # 9 words and 2 special tokens
    assert entry.versions()[-1] == 2
    assert tidal(*build, "--check").returncode == 0
    (entry.folder / LEARNED_FILE).unlink()
    stale = tidal(*build, "--check")
    assert stale.returncode == 1
    assert "lengths file" in stale.stdout
