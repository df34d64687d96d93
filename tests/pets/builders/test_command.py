"""`tidal build` and `tidal models list` on a base, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

from testing.models import make_tiny_classifier
from tests.tabi.builders.command import tidal_build
from tidal.server.model_facts import model_facts


def test_build_check_and_list(tmp_path: Path) -> None:
    source = make_tiny_classifier(tmp_path / "tiny", max_position=16, layers=1)
    spec, repository = tmp_path / "base.yaml", tmp_path / "r"
    spec.write_text(f"kind: pets\nname: base\nmodel: {source}\nmax_batch: 2\nprofile_seconds: 0.1\n")
    built = tidal_build(spec, "--repository", repository)
    assert built.code == 0, built.stderr
    for word in ("length", "batch", "maskbert", "version 1 published"):
        assert word in built.stdout
    for stage in ("load", "export", "verify", "profile", "publish"):
        assert f"base: {stage}" in built.stderr
    current = tidal_build(spec, "--repository", repository, "--check", "--json")
    (report,) = json.loads(current.stdout)["models"]
    assert (current.code, report["outcome"], report["version"]) == (0, "current", 1)
    (facts,) = model_facts(repository, None)
    assert (facts.backend, facts.engine, facts.precision, facts.max_length) == ("pets", "openvino", "fp32", 16)


def test_an_unknown_field_is_reported_with_a_suggestion(tmp_path: Path) -> None:
    spec = tmp_path / "base.yaml"
    spec.write_text("kind: pets\nname: base\nmodel: ./x\nmax_lenght: 5\n")
    wrong = tidal_build(spec)
    assert wrong.code == 2
    assert "unknown field 'max_lenght': did you mean 'max_length'?" in " ".join(wrong.stderr.split())
