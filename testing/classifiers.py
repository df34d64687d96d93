"""Builds of the tiny classifiers of `testing.models`, without the measurements that tests do not need."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from testing.building import short_timing


def build_classifier(repository: Path, source: Path, **fields: Any) -> None:
    """Build an `arlo` model into a repository.

    The form and the precision are fixed, so they are not compared, and latencies are measured with few calls.

    Args:
        repository: Folder of the model repository.
        source: Folder of the classifier in Hugging Face format.
        fields: Fields of the spec; `name` is "tiny" if it is not given. A partitioned model gets an instance of each
            runtime, on a machine with fewer cores too.
    """
    from tidal_builders.arlo.build import build_arlo
    from tidal_builders.arlo.spec import ArloSpec
    from tidal_builders.specs import parse_spec

    spec = {"kind": "arlo", "name": "tiny", "model": str(source), "precision": "fp32", **fields}
    if spec.get("placement") != "partitioned":
        spec.setdefault("form", "dynamic")
    elif "lengths" in spec:
        spec.setdefault("contexts", len(spec["lengths"]))
    with short_timing():
        build_arlo(
            cast(ArloSpec, parse_spec(spec, "test")), repository, spec_file=Path(f"{spec['name']}.yaml"), force=True
        )
