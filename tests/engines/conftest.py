"""A tiny classifier, compiled for every engine kind that this machine has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from testing.models import make_tiny_classifier
from tests.engines.support import MAX_BATCH, MAX_LENGTH, NAMES, STATIC_LENGTH, Batch, Logits, Setup, make_batch
from tidal.engines import (
    Artifact,
    PlanOptions,
    Precision,
    compile_engine,
    engine_file,
    specialise_engine,
    stored_as,
)


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = make_tiny_classifier(tmp_path_factory.mktemp("source"), layers=1, max_position=MAX_LENGTH)
    return AutoModelForSequenceClassification.from_pretrained(folder).eval()


@pytest.fixture(scope="session")
def reference(source: Any) -> Callable[[Batch], npt.NDArray[np.float32]]:
    """Logits of the unmodified source model."""

    def run(batch: Batch) -> npt.NDArray[np.float32]:
        with torch.inference_mode():
            return np.asarray(source(**{name: torch.from_numpy(batch[name]) for name in NAMES}).logits)

    return run


@pytest.fixture(scope="session")
def artifact(source: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Setup, Precision], Artifact]:
    """Return the source model compiled for a setup and a precision, once per stored precision.

    It can be opened for any length up to MAX_LENGTH, or for the length STATIC_LENGTH only.
    """
    compiled: dict[tuple[Setup, Precision], Path] = {}
    shapes = dict.fromkeys(NAMES, ((1, MAX_BATCH), (1, MAX_LENGTH)))
    static = dict.fromkeys(NAMES, ((1, MAX_BATCH), STATIC_LENGTH))

    def get(setup: Setup, precision: Precision) -> Artifact:
        stored = stored_as(setup.kind, setup.device)[precision]
        if (setup, stored) not in compiled:
            folder = tmp_path_factory.mktemp(f"{setup.kind}-{stored}")
            compile_engine(
                setup.kind,
                Logits(source),
                folder,
                precision=stored,
                shapes=shapes,
                example=make_batch(2, 16),
                calibration=[make_batch(1, 4 + i, seed=100 + i) for i in range(24)],
            )
            path = folder / engine_file(setup.kind)
            compiled[setup, stored], _ = specialise_engine(setup.kind, path, (shapes, static), PlanOptions())
        return Artifact(setup.kind, compiled[setup, stored], precision, shapes, setup.device)

    return get
