"""The config for a runtime's model that serves two versions with different engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.serve.partitioned import publish_partitioned
from tidal.catalog.graph import ModelGraph
from tidal.manifest import MANIFEST_FILE
from tidal.repository.config import CONFIG_FILE, read_config
from tidal.server.active_config import active_config
from tidal.server.joint_config import joint_config

_CONFIG = """
backend: "engine"
max_batch_size: 2
input [ { name: "input_ids" data_type: TYPE_INT64 dims: [ 64 ] } ]
output [ { name: "logits" data_type: TYPE_FP32 dims: [ -1 ] } ]
version_policy { specific { versions: [ 2 ] } }
"""
ATTENTION = {"name": "attention_received", "per_token": True}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A partitioned model of two versions; the config of its only runtime is that of version 2."""
    folder = tmp_path / "models"
    for version in (1, 2):
        publish_partitioned(folder, "m", [64], version=version)
    (folder / "m_len64" / CONFIG_FILE).write_text(_CONFIG)
    return folder


def change_manifest(repository: Path, model: str, version: int, **fields: Any) -> None:
    file = repository / model / str(version) / MANIFEST_FILE
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def joint(repository: Path, *versions: int) -> dict[str, Any] | None:
    return joint_config(ModelGraph.read(repository), "m", "m_len64", versions)


def test_for_equal_engines_only_the_versions_differ(repository: Path) -> None:
    """Therefore Triton keeps the running version loaded."""
    config = read_config(repository / "m_len64")
    assert joint(repository, 2) == config
    for versions in ((1,), (1, 2)):
        named = {"specific": {"versions": list(map(str, versions))}}
        assert joint(repository, *versions) == {**config, "version_policy": named}


def test_declares_the_outputs_of_all_versions(repository: Path) -> None:
    change_manifest(repository, "m_len64", 1, extra_outputs=[ATTENTION])
    added = {"name": "attention_received", "data_type": "TYPE_FP32", "dims": ["-1"]}
    logits = {"name": "logits", "data_type": "TYPE_FP32", "dims": ["-1"]}
    for versions, outputs in (((1, 2), [logits, added]), ((1,), [logits, added]), ((2,), [logits])):
        config = joint(repository, *versions)
        assert config is not None
        assert config["output"] == outputs


def test_inputs_that_a_version_lacks_are_optional(repository: Path) -> None:
    ids, mask = {"name": "input_ids", "below": 9}, {"name": "attention_mask", "below": 2}
    declared = {"data_type": "TYPE_INT64", "dims": ["64"]}
    change_manifest(repository, "m_len64", 1, inputs=[ids, mask])
    for versions in ((1, 2), (1,)):
        config = joint(repository, *versions)
        assert config is not None
        assert config["input"] == [
            {"name": "input_ids", **declared},
            {"name": "attention_mask", **declared, "optional": True},
        ]
    change_manifest(repository, "m_len64", 1, inputs=[mask])
    config = joint(repository, 1, 2)
    assert config is not None
    assert [(each["name"], each["optional"]) for each in config["input"]] == [
        ("input_ids", True),
        ("attention_mask", True),
    ]


def test_has_the_largest_batch_of_all_versions(repository: Path) -> None:
    runtime = {"max_length": 64, "file": "engine", "dynamic": False, "max_batch": 8}
    change_manifest(repository, "m_len64", 1, runtime=runtime)
    config = joint(repository, 1, 2)
    assert config is not None
    assert config["max_batch_size"] == 8


def test_for_tritons_own_backend_requires_equal_engines(repository: Path) -> None:
    change_manifest(repository, "m", 1, native=True)
    assert joint(repository, 1, 2) is None
    change_manifest(repository, "m", 2, native=True)
    assert joint(repository, 1, 2) is not None
    change_manifest(repository, "m", 2, native=True, labels=["a", "b"])
    assert joint(repository, 1, 2) is None
    # Without a joint config the old version is ignored.
    active = active_config(ModelGraph.read(repository), "m_len64", {1, 2})
    assert active is not None
    assert active.config == read_config(repository / "m_len64")


def test_without_a_manifest_there_is_none(repository: Path) -> None:
    (repository / "m_len64" / "1" / MANIFEST_FILE).unlink()
    assert joint(repository, 1, 2) is None
