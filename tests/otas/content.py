"""The content of a manifest of a vision transformer."""

from __future__ import annotations

from typing import Any

GRID = ((1.0, 2.0),) * 3


CONTENT: dict[str, Any] = {
    "kind": "otas",
    "name": "vit",
    "created": "2026-01-01T00:00:00+00:00",
    "spec": "vit.yaml",
    "fingerprint": "f",
    "libraries": {"openvino": "1"},
    "files": [],
    "source": {"model": "vit_tiny", "architecture": "VisionTransformer", "sha256": "0" * 64},
    "engine": "openvino",
    "precision": "fp32",
    "device": {"kind": "cpu", "name": "a processor"},
    "base": "0" * 64,
    "image": {
        "channels": 1, "height": 4, "width": 4, "crop_pct": 0.9, "crop_mode": "center", "interpolation": "bicubic",
        "mean": (0.5,), "std": (0.5,),
    },
    "width": 2,
    "layers": 3,
    "tokens": 5,
    "accumulate": False,
    "gammas": (-1, 0, 2),
    "max_batch": 8,
    "threads": 1,
    "engines": [
        {"gammas": (-1,), "file": "a", "batch": 1},
        {"gammas": (-1,), "file": "a", "batch": 3},
        {"gammas": (0,), "file": "b", "batch": None},
        {"gammas": (2,), "file": "c", "batch": None},
    ],
    "verification": [{"gamma": gamma, "samples": 1, "max_abs_error": 0, "tolerance": 1} for gamma in (-1, 0, 2)],
    "profile": {
        "gammas": (-1, 0, 2), "batches": (1, 8), "median_ms": GRID, "p95_ms": GRID, "image_bytes": (1, 1, 1),
    },
}  # fmt: skip
