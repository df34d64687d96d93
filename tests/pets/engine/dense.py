"""Tasks in the banks of a plan."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from testing.truth import Exported, random_terms
from tests.pets.engine.conftest import Loaded
from tidal.engines import Artifact
from tidal.pets.kinds.adapter import accepts_adapter
from tidal.pets.tensorrt_engine.engine import TensorRtPetsEngine
from tidal.pets.terms import Bottleneck, LinearTerms, TaskTerms
from tidal_builders.pets.spec import PetsPlanOptions

OPTIONS = PetsPlanOptions(rank=20, bottleneck=40, tasks=12)


KINDS = ("bias", "low_rank", "norm", "head", "bottleneck")


def terms_of(kind: str, base: Exported, seed: int) -> TaskTerms:
    """A task of a dense kind; bottlenecks have one activation and are only where adapters are accepted."""
    if kind != "bottleneck":
        return random_terms(kind, base.layers, seed)
    activation: Any = ("relu", "gelu", "silu")[seed % 3]
    linear: dict[str, LinearTerms] = {}
    for draw in range(seed, seed + 99, 3):
        drawn = random_terms("bottleneck", base.layers, draw)
        for path, own in drawn.linear.items():
            if accepts_adapter(path) and own.bottleneck is not None:
                parts = (getattr(own.bottleneck, name) for name in ("down", "down_bias", "up", "up_bias"))
                linear[path] = LinearTerms(bottleneck=Bottleneck(*parts, activation))
        if linear:
            break
    return TaskTerms(drawn.head, linear)


def banks_at(artifact: Artifact, resident: Mapping[str, int]) -> dict[str, Any]:
    """Arrays of a plan's banks at their addresses."""
    banks = {}
    for name, address in resident.items():
        shape: Any = artifact.shapes[name]
        floats = (ctypes.c_float * int(np.prod(shape))).from_address(address)
        banks[name] = np.ctypeslib.as_array(floats).reshape(shape)
    return banks


def load(engine: TensorRtPetsEngine, plan: Exported, seed: int) -> dict[str, Loaded]:
    terms = {kind: terms_of(kind, plan, seed) for kind in KINDS}
    return {kind: Loaded(engine.add(own), own, plan) for kind, own in terms.items()}
