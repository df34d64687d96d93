"""A tiny base with a classifier, and what tasks are made for."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoModel

from tests.models import make_tiny_classifier
from tidal_builders.pets.base import base_layers
from tidal_builders.pets.encoder import read_encoder
from tidal_builders.pets.importing.found import Base


@pytest.fixture(scope="session")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_classifier(tmp_path_factory.mktemp("base"), hidden=32)


@pytest.fixture(scope="session")
def base(base_folder: Path) -> Base:
    return Base(*base_layers(read_encoder(AutoModel.from_pretrained(base_folder))))
