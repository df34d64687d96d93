"""Adapters saved by peft, once per session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.flover.tasks.adapters import save_adapter

# Options of adapters that differ in their layers and ranks; 24 ranks are more than a block of the kernels holds.
SHAPES: dict[str, dict[str, Any]] = {
    "narrow": {"r": 2, "layers_to_transform": [1]},
    "usual": {"r": 8},
    "wide": {"r": 24, "use_rslora": True},
}


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Return the folder of an adapter, by family and name in `SHAPES`."""
    folder, made = tmp_path_factory.mktemp("adapters"), dict[tuple[str, str], Path]()

    def folder_of(family: str, shape: str) -> Path:
        if (family, shape) not in made:
            seed = list(SHAPES).index(shape)
            made[family, shape] = save_adapter(folder / family / shape, family, seed, **SHAPES[shape])
        return made[family, shape]

    return folder_of
