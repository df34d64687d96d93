"""A cascade of regressions over pairs of texts."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tabi.builders.conftest import RATED_COLUMNS, Built
from tidal.repository.config import read_config
from tidal.tabi.manifest import load_tabi_manifest
from tidal_builders.tabi.data import REPORT, read_queries
from tidal_builders.tabi.spec import Columns, Parts

pytestmark = pytest.mark.slow


def test_a_cascade_of_regressions(rated: Built) -> None:
    manifest = load_tabi_manifest(rated.repository / "reviews/1")
    assert (manifest.task, manifest.pairs, manifest.metric, manifest.labels) == ("regression", True, "spearman", ())
    assert manifest.levels[-1].name == "large"
    assert manifest.levels[-1].score > 0.999
    queries = read_queries(rated.spec.with_name("pairs.jsonl"), Columns(**RATED_COLUMNS), None, Parts()).data
    known = queries.truth[queries.part != REPORT]
    for level in manifest.levels:
        assert level.calibration.regression is not None
        # Half the standard deviation of the labels, those of the report part unseen.
        assert level.calibration.regression.tolerance == np.std(known) / 2
    config = read_config(rated.repository / "reviews")
    assert [each["name"] for each in config["input"]] == ["text_input", "text_pair"]
    assert not any("optional" in each for each in config["input"])
    outputs = {each["name"] for each in config["output"]}
    for level in ("small", "large"):  # asked directly, a score has no label
        declared = {each["name"] for each in read_config(rated.repository / f"reviews_{level}")["output"]}
        assert not declared & {"label", "probabilities"}
    assert outputs == {"value", "level", "confidence", "degraded", "input_tokens", "pruned_text", "pruned_pair"}
