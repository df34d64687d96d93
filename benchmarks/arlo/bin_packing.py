"""INFaaS-like dispatching: bin packing among the instances that are long enough (Arlo §5, "Compared schemes").

This file is copied next to `bin_packing_model.py` in the model repository, so it cannot import the benchmarks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pydantic import Field

from tidal.arlo.front import open_front
from tidal.arlo.manifest import load_arlo_manifest
from tidal.arlo.parameters import ArloParameters
from tidal.repository.entries import ModelEntry
from tidal.service import Service, ServiceContext
from tidal.simulator.arlo.dispatch import BinPacking


class BinPackingParameters(ArloParameters):
    """Parameters of the front in its config.pbtxt."""

    fill: float = Field(gt=0, le=1)
    front: str = Field(description="partitioned model whose runtimes and allocation this model uses")


def load(context: ServiceContext, parameters: BinPackingParameters) -> Callable[[ServiceContext], Service]:
    """Load the model, as `tidal.arlo.loading.load` does, over the runtimes of another front."""
    folder = ModelEntry(context.model_dir.parent / parameters.front)
    version_dir = folder.latest()
    assert version_dir is not None
    assert parameters.slo_ms is not None
    slo_s = parameters.slo_ms / 1e3
    of_front = replace(
        context,
        model=parameters.front,
        version=int(version_dir.name),
        model_dir=folder.folder,
        version_dir=version_dir,
    )
    front = open_front(of_front, load_arlo_manifest(version_dir), parameters)

    def start(fresh: ServiceContext) -> Service:
        policy = BinPacking(front.lengths, front.latencies_s, slo_s, front.allocation.instances, fill=parameters.fill)
        return front.service(fresh, policy)

    return start
