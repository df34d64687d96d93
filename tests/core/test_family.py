"""Which models of a repository belong together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tidal.repository.names import runtime_model
from tidal.repository.partitioned import Family, family

_COMMON: dict[str, Any] = {
    "created": "2026-01-01T00:00:00+00:00",
    "spec": "m.yaml",
    "fingerprint": "f",
    "source": {"model": "m", "architecture": "Bert", "sha256": "s"},
    "engine": "openvino",
    "precision": "fp32",
    "device": {"kind": "cpu", "name": "c"},
    "libraries": {},
    "files": [],
    "verification": {"samples": 1, "max_abs_error": 0, "tolerance": 1, "argmax_agreement": 1},
}


def runtime(length: int) -> dict[str, Any]:
    return {"max_length": length, "file": "engines/model.xml", "dynamic": False, "max_batch": 1}


def publish_front(repository: Path, name: str, version: int, lengths: list[int], **fields: Any) -> None:
    profile = {"lengths": lengths, "batches": [1], "median_ms": [[1.0]] * len(lengths)}
    write(
        repository,
        name,
        version,
        kind="arlo",
        tokenizer={"file": "t", "max_length": lengths[-1], "pad_token_id": 0, "type_ids": False},
        labels=["a"],
        runtimes=[runtime(length) for length in lengths],
        profile={**profile, "p95_ms": profile["median_ms"], "threads": 1},
        **fields,
    )


def write(repository: Path, name: str, version: int, **fields: Any) -> None:
    folder = repository / name / str(version)
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({**_COMMON, "name": name, **fields}))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A partitioned `m` whose version 2 has other lengths than its version 1, and models that stand by themselves."""
    publish_front(tmp_path, "m", 1, [16, 32], placement="partitioned")
    publish_front(tmp_path, "m", 2, [16, 64], placement="partitioned")
    for length, versions in ((16, (1, 2)), (32, (1,)), (64, (2,))):
        for version in versions:
            fields: dict[str, Any] = {"kind": "engine", "front": "m", "runtime": runtime(length), "threads": 1}
            fields["inputs"] = [{"name": "input_ids", "below": 9}]
            write(tmp_path, runtime_model("m", length), version, **fields)
    publish_front(tmp_path, "plain", 1, [16])
    publish_front(tmp_path, "plain_len16", 1, [16])
    (tmp_path / "damaged/1").mkdir(parents=True)
    (tmp_path / "damaged/1/manifest.json").write_text("{")
    return tmp_path


@pytest.mark.parametrize("member", ["m", "m_len16", "m_len32", "m_len64"])
def test_every_member_knows_its_family(repository: Path, member: str) -> None:
    found = family(repository, member)
    assert found == Family("m", 2, (16, 64))
    assert found.runtime_models == {16: "m_len16", 64: "m_len64"}


@pytest.mark.parametrize("other", ["plain", "plain_len16", "damaged", "absent"])
def test_others_have_none(repository: Path, other: str) -> None:
    assert family(repository, other) is None
