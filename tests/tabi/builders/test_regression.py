"""A cascade of regressions over pairs of texts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.models import make_tiny_classifier
from tests.tabi.builders.command import tidal_build
from tests.tabi.builders.conftest import values_of, write_spec
from tidal.model_config import read_config
from tidal.tabi.manifest import load_tabi_manifest
from tidal_builders.tabi.data import read_queries
from tidal_builders.tabi.outputs import REPORT
from tidal_builders.tabi.spec import Columns, Parts
from tidal_builders.texts import make_texts


def test_a_cascade_of_regressions(tmp_path: Path) -> None:
    models = tmp_path / "models"
    make_tiny_classifier(models / "small", layers=1, hidden=32, labels=["score"], max_position=64)
    make_tiny_classifier(models / "large", layers=2, hidden=64, labels=["score"], max_position=64, seed=1)
    first, second = make_texts(100, seed=1), make_texts(100, seed=2)
    values = values_of(models / "large", list(zip(first, second, strict=True)))
    data = tmp_path / "pairs.jsonl"
    rows = [{"one": a, "two": b, "score": value} for a, b, value in zip(first, second, values, strict=True)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = {"text": "one", "pair": "two", "label": "score"}
    spec = write_spec(tmp_path / "reviews.yaml", models, data, columns=columns, metric="spearman")

    done = tidal_build(spec, "--repository", tmp_path / "r")
    assert done.code == 0, done.stderr
    manifest = load_tabi_manifest(tmp_path / "r/reviews/1")
    assert (manifest.task, manifest.pairs, manifest.metric, manifest.labels) == ("regression", True, "spearman", ())
    assert manifest.levels[-1].name == "large"
    assert manifest.levels[-1].score > 0.999
    queries = read_queries(data, Columns(**columns), None, Parts()).data
    known = queries.truth[queries.part != REPORT]
    for level in manifest.levels:
        assert level.calibration.regression is not None
        # Half the standard deviation of the labels, those of the report part unseen.
        assert level.calibration.regression.tolerance == np.std(known) / 2
    outputs = {each["name"] for each in read_config(tmp_path / "r/reviews")["output"]}
    assert outputs == {"value", "level", "confidence", "degraded", "pruned_text", "pruned_pair"}
