"""Adapters that peft saved, once for all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.flover.tasks.adapters import save_adapter

#: Of one family, as unlike as they get: few layers, all of them, more ranks than a block has.
SHAPES: dict[str, dict[str, Any]] = {
    "narrow": {"r": 2, "layers_to_transform": [1]},
    "usual": {"r": 8},
    "wide": {"r": 24, "use_rslora": True},
}


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """The folder of an adapter by family and name of `SHAPES`."""
    folder, made = tmp_path_factory.mktemp("adapters"), dict[tuple[str, str], Path]()

    def find(family: str, shape: str) -> Path:
        if (family, shape) not in made:
            seed = list(SHAPES).index(shape)
            made[family, shape] = save_adapter(folder / family / shape, family, seed, **SHAPES[shape])
        return made[family, shape]

    return find
