"""A tiny base with a classifier, as a folder and as the target of imports."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification

from testing.models import make_tiny_classifier
from tidal_builders.pets.base import base_layers
from tidal_builders.pets.encoder import read_encoder
from tidal_builders.pets.importing.imported import ImportBase


@pytest.fixture(scope="session")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_classifier(tmp_path_factory.mktemp("base"), hidden=32)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        for weight in model.parameters():
            if weight.ndim == 1:  # initial biases of 0 and norms of 1 would hide mistakes
                weight.add_(torch.randn_like(weight) * 0.2)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def base(base_folder: Path) -> ImportBase:
    encoder = read_encoder(AutoModel.from_pretrained(base_folder))
    return ImportBase(*base_layers(encoder), "some/base", base_folder)
