"""Versions that consist of a manifest alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
