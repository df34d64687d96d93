"""Forms of models, and comparison of trained parameters, for tests of trainings."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidal.otas.manifest import OtasForm
from tidal.otas.tasks import TaskParameters


def form_of(vit: Any, gammas: tuple[int, ...]) -> OtasForm:
    """Return the shapes of a transformer that serves some γ."""
    config = vit.config
    return OtasForm(
        image=config.image, width=config.width, layers=config.layers, tokens=config.tokens, accumulate=False,
        gammas=gammas, max_batch=4,
    )  # fmt: skip


def same(one: TaskParameters, other: TaskParameters) -> bool:
    """Return whether two trainings had the same result at γ 0 and 2."""
    pairs = [(one.head.weight, other.head.weight), (one.heads[2].bias, other.heads[2].bias)]
    pairs += [(one.prompts[2], other.prompts[2])]
    return all(np.array_equal(mine, yours) for mine, yours in pairs)
